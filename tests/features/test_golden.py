"""The features of 30 bundled events equal reviewed ones; `pytest --update-golden` writes these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delphes_files import select
from extracted_features import named, particles_of

from features.columns import PARTICLE_FEATURE_NAMES, hlf_names
from features.kernels import build_features
from features.settings import Convention, FeatureSettings, Ordering
from ingestion.file_info import FileInfo

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
EVENTS_PER_SAMPLE = 10
CHOICES = {
    "correct": FeatureSettings(),
    "sparkdltrigger": FeatureSettings(convention=Convention.SPARKDLTRIGGER, ordering=Ordering.FILE),
}


def summarise(files: list[FileInfo], settings: FeatureSettings) -> list[dict[str, Any]]:
    """Summaries of the first events of each file.

    HLF, number of particles, sum of each particle feature, and the first two particles.
    """
    summaries = []
    for info in files:
        events = select(info).table
        block = build_features(events, settings)
        all_particles = particles_of(block).astype(np.float64)
        for index in range(EVENTS_PER_SAMPLE):
            start, stop = block.particle_offsets[index : index + 2]
            particles = all_particles[start:stop]
            entry = events["entry"][int(block.selected[index])].as_py()
            (hlf,) = named(block.hlf[index : index + 1], hlf_names())
            (sums,) = named(particles.sum(axis=0, keepdims=True), PARTICLE_FEATURE_NAMES)
            summary = {
                "sample": info.sample,
                "entry": entry,
                "hlf": hlf,
                "num_particles": len(particles),
                "sums": sums,
                "first_rows": named(particles[:2], PARTICLE_FEATURE_NAMES),
            }
            summaries.append(summary)
    return summaries


def assert_same_features(actual: dict[str, float], golden: dict[str, float]) -> None:
    """Compare by name: features that were added since are not among the golden ones."""
    same_names = {name: actual[name] for name in golden}
    assert same_names == pytest.approx(golden, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", CHOICES)
def test_features_equal_the_golden_ones(
    name: str, bundled_files: list[FileInfo], update_golden: bool
) -> None:
    files = [info for info in bundled_files if info.path.endswith("_0.root")]
    path = GOLDEN / f"features_{name}.json"

    actual = summarise(files, CHOICES[name])

    if update_golden:
        path.write_text(json.dumps(actual, indent=1) + "\n")
        pytest.skip(f"{path.name} was replaced; review the difference before you commit it")
    expected = json.loads(path.read_text())
    assert len(actual) == len(expected) == 3 * EVENTS_PER_SAMPLE
    for event, golden in zip(actual, expected, strict=True):
        for key in ("sample", "entry", "num_particles"):
            assert event[key] == golden[key]
        assert_same_features(event["hlf"], golden["hlf"])
        assert_same_features(event["sums"], golden["sums"])
        for row, golden_row in zip(event["first_rows"], golden["first_rows"], strict=True):
            assert_same_features(row, golden_row)
