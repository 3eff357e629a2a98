"""docs/features.md: the numbers that compare CERN's published conventions with the correct ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from delphes_files import select
from extracted_features import particles_of

from features.columns import PARTICLE_FEATURE_NAMES, hlf_names
from features.kernels import LACKS_CANDIDATE_KIND, FeatureBlock, build_features
from features.settings import Convention, FeatureSettings, Ordering
from ingestion.files import FileInfo

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "features.md").read_text(encoding="utf-8")
LEPTON = [hlf_names().index(name) for name in ("lepton_pt", "lepton_eta", "lepton_phi")]
LEPTON_ISO = [
    hlf_names().index(f"lepton_iso_{source}") for source in ("charged", "photon", "neutral")
]
NUM_JETS = hlf_names().index("num_jets")
DIRECTION = [PARTICLE_FEATURE_NAMES.index(name) for name in ("pt", "eta", "phi")]
ISO = [PARTICLE_FEATURE_NAMES.index(f"iso_{source}") for source in ("charged", "photon", "neutral")]
CHARGE = PARTICLE_FEATURE_NAMES.index("charge")


def candidates_of(block: FeatureBlock, index: int) -> np.ndarray:
    """The particles of a selected event without its lepton."""
    start, stop = block.particle_offsets[index : index + 2]
    return particles_of(block)[start + 1 : stop]


def compare(files: list[FileInfo]) -> Counter[str]:
    """Numbers of events and particles that the conventions treat differently."""
    counts: Counter[str] = Counter()
    in_file_order = FeatureSettings(ordering=Ordering.FILE)
    published_settings = FeatureSettings(
        convention=Convention.SPARKDLTRIGGER, ordering=Ordering.FILE
    )
    uncleaned_settings = in_file_order.model_copy(update={"jet_lepton_cleaning_dr": 0.0})
    for info in files:
        events = select(info).table
        correct = build_features(events, in_file_order)
        published = build_features(events, published_settings)
        uncleaned = build_features(events, uncleaned_settings)
        has_lepton_jet = uncleaned.hlf[:, NUM_JETS] > correct.hlf[:, NUM_JETS]
        counts["correct"] += len(correct.selected)
        counts["published"] += len(published.selected)
        counts["lepton_jets"] += np.count_nonzero(has_lepton_jet)
        counts["lacking"] += np.count_nonzero(published.outcome == LACKS_CANDIDATE_KIND)
        _, correct_indices, published_indices = np.intersect1d(
            correct.selected, published.selected, return_indices=True
        )
        for correct_index, published_index in zip(correct_indices, published_indices, strict=True):
            counts += compare_event(correct, correct_index, published, published_index)
    return counts


def same_directions(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two events have the same candidates, in the same order."""
    if first.shape != second.shape:
        return False
    return np.allclose(first[:, DIRECTION], second[:, DIRECTION])


def compare_event(
    correct: FeatureBlock, correct_index: int, published: FeatureBlock, published_index: int
) -> Counter[str]:
    """The counts of an event that both conventions select."""
    counts = Counter(["common"])
    correct_hlf = correct.hlf[correct_index]
    published_hlf = published.hlf[published_index]
    if not np.allclose(correct_hlf[LEPTON], published_hlf[LEPTON]):
        counts["other_lepton"] = 1
        return counts
    if not np.allclose(correct_hlf[LEPTON_ISO], published_hlf[LEPTON_ISO], atol=1e-5):
        counts["other_iso"] = 1
    correct_rows = candidates_of(correct, correct_index)
    published_rows = candidates_of(published, published_index)
    if not same_directions(correct_rows, published_rows):
        counts["other_particles"] = 1
        return counts
    iso_differs = abs(correct_rows[:, ISO] - published_rows[:, ISO]) > 1e-3
    charge_differs = correct_rows[:, CHARGE] != published_rows[:, CHARGE]
    counts["rows"] = len(correct_rows)
    counts["rows_other_iso"] = np.count_nonzero(iso_differs.any(axis=1))
    counts["rows_other_charge"] = np.count_nonzero(charge_differs)
    return counts


@pytest.mark.slow
def test_every_number_of_the_table_is_that_of_the_bundled_sample(
    bundled_files: list[FileInfo],
) -> None:
    counts = compare(bundled_files)

    num_correct = counts["correct"]
    num_rows = counts["rows"]
    num_common = counts["common"]
    num_other_lepton = counts["other_lepton"]
    num_same_lepton = num_common - num_other_lepton
    share_other_iso = counts["rows_other_iso"] / num_rows
    start_of_table = PAGE.index("sparkdltrigger` computes")
    # Without the line breaks.
    table = " ".join(PAGE[start_of_table:].split())
    assert f"{counts['published']} events are selected instead of {num_correct}" in table
    assert f"{num_other_lepton} of the {num_common} common events have another lepton" in table
    assert f"{counts['lacking']} events" in table
    assert f"{counts['lepton_jets']} of the {num_correct} events" in table
    assert f"{counts['other_iso']} of the other {num_same_lepton} leptons" in table
    assert f"{share_other_iso:.0%} of the particles" in table
    assert f"{counts['rows_other_charge']} of {num_rows:,} particles" in table
    assert f"{counts['other_particles']} of the {num_same_lepton} events" in table
