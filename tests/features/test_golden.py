"""The features of 30 bundled events equal the reviewed ones; `pytest --update-golden` replaces these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delphes_files import select
from extracted_features import particles_of

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


def table_of(files: list[FileInfo], settings: FeatureSettings) -> list[dict[str, Any]]:
    """HLF, number of particles, sum of each particle feature and first two rows of the first events of each file."""
    rows = []
    for info in files:
        events = select(info).table
        block = build_features(events, settings)
        for index in range(EVENTS_PER_SAMPLE):
            first, last = block.particle_offsets[index : index + 2]
            particles = particles_of(block)[first:last].astype(np.float64)
            rows.append(
                {
                    "sample": info.sample,
                    "entry": events["entry"][int(block.selected[index])].as_py(),
                    "hlf": dict(zip(hlf_names(), block.hlf[index].tolist(), strict=True)),
                    "num_particles": int(last - first),
                    "sums": dict(
                        zip(PARTICLE_FEATURE_NAMES, particles.sum(axis=0).tolist(), strict=True)
                    ),
                    "first_rows": [
                        dict(zip(PARTICLE_FEATURE_NAMES, row, strict=True))
                        for row in particles[:2].tolist()
                    ],
                }
            )
    return rows


@pytest.mark.parametrize("name", CHOICES)
def test_features_are_those_of_the_golden_table(
    name: str, bundled_files: list[FileInfo], update_golden: bool
) -> None:
    actual = table_of(
        [info for info in bundled_files if info.path.endswith("_0.root")], CHOICES[name]
    )
    path = GOLDEN / f"features_{name}.json"
    if update_golden:
        path.write_text(json.dumps(actual, indent=1) + "\n")
        pytest.skip(f"{path.name} was replaced; review the difference before you commit it")
    expected = json.loads(path.read_text())
    assert len(actual) == len(expected) == 3 * EVENTS_PER_SAMPLE
    for event, golden in zip(actual, expected, strict=True):
        position = f"{golden['sample']}, entry {golden['entry']}"
        assert (event["sample"], event["entry"]) == (golden["sample"], golden["entry"])
        assert event["num_particles"] == golden["num_particles"], position
        assert len(event["first_rows"]) == len(golden["first_rows"])
        pairs = [(event[particle_kind], golden[particle_kind]) for particle_kind in ("hlf", "sums")]
        for features, expected_features in [
            *pairs,
            *zip(event["first_rows"], golden["first_rows"], strict=True),
        ]:
            # By name: a feature that is new since then is not among them.
            same_names = {name: features[name] for name in expected_features}
            assert same_names == pytest.approx(expected_features, rel=1e-6, abs=1e-6), position
