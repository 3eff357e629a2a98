"""docs/features.md: every number of its table of what CERN's published conventions do to the bundled sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from delphes_files import select
from extracted_features import particles_of

from features.columns import PARTICLE_FEATURE_NAMES, hlf_names
from features.kernels import LACKS_CANDIDATE_KIND, FeatureBlock, build_features
from features.settings import Convention, FeatureSettings, Ordering
from ingestion.file_info import FileInfo

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "features.md").read_text(encoding="utf-8")
LEPTON = [hlf_names().index(name) for name in ("lepton_pt", "lepton_eta", "lepton_phi")]
LEPTON_ISO = [hlf_names().index(f"lepton_iso_{kind}") for kind in ("charged", "photon", "neutral")]
NUM_JETS = hlf_names().index("num_jets")
DIRECTION = [PARTICLE_FEATURE_NAMES.index(name) for name in ("pt", "eta", "phi")]
ISO = [PARTICLE_FEATURE_NAMES.index(f"iso_{kind}") for kind in ("charged", "photon", "neutral")]
CHARGE = PARTICLE_FEATURE_NAMES.index("charge")


def rows_of(block: FeatureBlock, index: int) -> np.ndarray:
    return particles_of(block)[block.particle_offsets[index] : block.particle_offsets[index + 1]]


def compare(files: list[FileInfo]) -> dict[str, int]:
    counts = dict.fromkeys(
        [
            "correct",
            "published",
            "lacking",
            "common",
            "other_lepton",
            "other_iso",
            "other_particles",
        ],
        0,
    )
    counts |= dict.fromkeys(["rows", "rows_other_iso", "rows_other_charge", "lepton_jets"], 0)
    for info in files:
        events = select(info).table
        ours = build_features(events, FeatureSettings(ordering=Ordering.FILE))
        theirs = build_features(
            events, FeatureSettings(convention=Convention.SPARKDLTRIGGER, ordering=Ordering.FILE)
        )
        counts["correct"] += len(ours.selected)
        uncleaned = build_features(
            events, FeatureSettings(ordering=Ordering.FILE, jet_lepton_cleaning_dr=0.0)
        )
        counts["lepton_jets"] += int((uncleaned.hlf[:, NUM_JETS] > ours.hlf[:, NUM_JETS]).sum())
        counts["published"] += len(theirs.selected)
        counts["lacking"] += int((theirs.outcome == LACKS_CANDIDATE_KIND).sum())
        for event in np.intersect1d(ours.selected, theirs.selected):
            first, second = (
                np.searchsorted(ours.selected, event),
                np.searchsorted(theirs.selected, event),
            )
            counts["common"] += 1
            if not np.allclose(ours.hlf[first, LEPTON], theirs.hlf[second, LEPTON]):
                counts["other_lepton"] += 1
                continue
            counts["other_iso"] += not np.allclose(
                ours.hlf[first, LEPTON_ISO], theirs.hlf[second, LEPTON_ISO], atol=1e-5
            )
            mine, published = rows_of(ours, int(first))[1:], rows_of(theirs, int(second))[1:]
            if mine.shape != published.shape or not np.allclose(
                mine[:, DIRECTION], published[:, DIRECTION]
            ):
                counts["other_particles"] += 1
                continue
            counts["rows"] += len(mine)
            counts["rows_other_iso"] += int(
                (abs(mine[:, ISO] - published[:, ISO]) > 1e-3).any(axis=1).sum()
            )
            counts["rows_other_charge"] += int((mine[:, CHARGE] != published[:, CHARGE]).sum())
    return counts


@pytest.mark.slow
def test_every_number_of_the_table_is_what_the_bundled_sample_gives(
    bundled_files: list[FileInfo],
) -> None:
    c = compare(bundled_files)
    same_lepton = c["common"] - c["other_lepton"]
    table = " ".join(PAGE[PAGE.index("sparkdltrigger` computes") :].split())
    for message in (
        f"{c['published']} events are selected instead of {c['correct']}",
        f"{c['other_lepton']} of the {c['common']} common events have another lepton",
        f"{c['lacking']} events",
        f"{c['lepton_jets']} of the {c['correct']} events",
        f"{c['other_iso']} of the other {same_lepton} leptons",
        f"{c['rows_other_iso'] / c['rows']:.0%} of the particles",
        f"{c['rows_other_charge']} of {c['rows']:,} particles",
        f"{c['other_particles']} of the {same_lepton} events",
    ):
        assert message in table, message
