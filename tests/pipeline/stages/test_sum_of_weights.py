"""Sums of weights of samples whose files hold a part of the generated events.

The config states the sum, or it is added up over the files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from delphes_files import write_delphes
from night_files import FIRST, Night, events
from pydantic import ValidationError
from stages_in_process import without_spark

from features.errors import FeatureError
from ingestion.errors import ConflictingFilesError, MissingBranchError
from ingestion.settings import SampleSettings
from pipeline.errors import ConfigError
from pipeline.runner import State

CROSS_SECTIONS = {"qcd": 1000.0, "ttbar": 100.0, "wjets": 10.0}
SUM_OF_FILES = "Runs.genEventSumw"


class Skim(Night):
    """A night whose sample `qcd` is a skim: of 400 events, each of weight 1, its file holds 40."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        add_runs(self.data / "qcd_0.root", 250.0, 150.0)

    def run_qcd(self, *stages: str, ingest: dict[str, Any] | None = None, **qcd: Any) -> str:
        """Run ingest and features, or the named stages, with these settings of the sample `qcd`."""
        samples: list[dict[str, Any]] = []
        for label, (name, cross_section) in enumerate(CROSS_SECTIONS.items()):
            files = [f"{self.data}/{name}*.root"]
            sample = {"name": name, "label": label, "files": files}
            samples.append({**sample, "cross_section_pb": cross_section})
        samples[0] |= qcd
        return self.run(*stages, samples=samples, ingest=ingest or {})

    def factor(self) -> float:
        """Physics weight of an event of `qcd`."""
        normalisation = self.counters("features")["normalisation"]["qcd"]
        return float(normalisation["factor"])

    def efficiencies(self) -> list[float]:
        """Weighted efficiency of `qcd` after each step."""
        cutflow = json.loads((self.folder_of("features") / "cutflow.json").read_text())
        return [
            step["columns"]["qcd"]["weighted_efficiency"]["value"] for step in cutflow["samples"]
        ]


def add_runs(path: Path, *sums: float, branch: str = "genEventSumw") -> None:
    """Add a tree of runs, as NanoAOD has it."""
    counts = np.array(sums)
    with uproot.update(path) as file:
        tree = file.mktree("Runs", {branch: np.float64, "genEventCount": np.int64})
        tree.extend({branch: counts, "genEventCount": counts.astype(np.int64)})


@pytest.fixture
def skim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Skim:
    without_spark(monkeypatch, tmp_path)
    return Skim(tmp_path)


def test_a_skim_with_the_cross_section_of_the_sample_is_noted(skim: Skim) -> None:
    output = skim.run_qcd()

    assert (
        "note: Sample 'qcd' looks like a skim: Runs.genEventCount is 400, its tree has 40 entries."
        in output
    )
    assert "`sum_of_weights:` a number, or a branch" in output
    assert (
        "note: Nothing in the files of ttbar, wjets shows whether they hold all generated events"
        in output
    )
    assert skim.factor() == pytest.approx(1000 / 40)
    assert skim.efficiencies()[0] == 1.0


def test_a_skim_with_its_sum_of_weights_is_normalised_to_all_generated_events(skim: Skim) -> None:
    output = skim.run_qcd(sum_of_weights=SUM_OF_FILES)

    assert "looks like a skim" not in output
    assert "Efficiencies of weights are relative to all generated events of: qcd" in output
    assert skim.factor() == pytest.approx(1000 / 400)
    # Of 40 events 30 have a lepton, which all pass.
    efficiencies = skim.efficiencies()
    assert (efficiencies[0], efficiencies[-1]) == pytest.approx((0.1, 30 / 400))
    luminosity = skim.runner().run_folder.config.trigger_luminosity
    assert luminosity is not None
    expected_rate = 1000 * 30 / 400 * luminosity * 1e-36
    assert skim.rates().of_samples["qcd"].value == pytest.approx(expected_rate)


def test_the_sum_follows_the_files(skim: Skim) -> None:
    skim.run_qcd(sum_of_weights=SUM_OF_FILES)
    write_delphes(skim.data / "qcd_1.root", events(500))
    with pytest.raises(
        MissingBranchError, match=r"qcd_1\.root lacks 'Runs\.genEventSumw', the sum_of_weights of"
    ):
        skim.run_qcd(sum_of_weights=SUM_OF_FILES)

    add_runs(skim.data / "qcd_1.root", 100.0)
    # No event of this file passed the skim.
    add_runs(write_delphes(skim.data / "qcd_2.root", []), 500.0)
    output = skim.run_qcd(sum_of_weights=SUM_OF_FILES)

    assert "1 files read, 3 reused" in output
    assert skim.factor() == pytest.approx(1000 / 1000)


def test_another_number_makes_only_the_features_stale(skim: Skim) -> None:
    skim.run_qcd(sum_of_weights=SUM_OF_FILES)

    output = skim.run_qcd(sum_of_weights=2000)
    assert "ingest: up to date" not in output
    assert "0 files read" in output

    output = skim.run_qcd(sum_of_weights=2500)
    assert "ingest: up to date" in output
    assert "sum_of_weights changed" in output
    assert skim.factor() == pytest.approx(1000 / 2500)

    skim.run_qcd("ingest", sum_of_weights=SUM_OF_FILES)
    assert skim.states() == [State.FRESH, State.STALE]


def test_a_number_for_all_files_is_noted_if_some_are_left_out(skim: Skim) -> None:
    (skim.data / "qcd_1.root").write_text("this is text, not ROOT, and long enough")
    skip = {"on_bad_file": "skip"}
    note = "note: sum_of_weights of qcd is a number for all files, and 1 of them are left out"

    assert note in skim.run_qcd(sum_of_weights=600.0, ingest=skip)

    output = skim.run_qcd(sum_of_weights=SUM_OF_FILES, ingest=skip)
    assert "sum_of_weights of qcd" not in output
    assert skim.factor() == pytest.approx(1000 / 400)


def test_sums_of_files_with_copies_are_refused(skim: Skim) -> None:
    drop = {"on_duplicate": "drop"}
    write_delphes(skim.data / "qcd_1.root", events(FIRST["qcd"])[:8])
    add_runs(skim.data / "qcd_1.root", 400.0)

    with pytest.raises(
        ConflictingFilesError, match=r"sample 'qcd': 8 events are copies .* count them twice"
    ):
        skim.run_qcd(sum_of_weights=SUM_OF_FILES, ingest=drop)

    skim.run_qcd(sum_of_weights=400, ingest=drop)
    assert skim.factor() == pytest.approx(1000 / 400)


def test_a_sum_below_that_of_the_events_read_is_refused(skim: Skim) -> None:
    with pytest.raises(
        FeatureError,
        match=r"sample 'qcd': .* read add up to 40, .* generated events, 39 \(sum_of_w",
    ):
        skim.run_qcd(sum_of_weights=39)


def test_weights_of_zero_are_refused_unless_every_event_counts_1(skim: Skim) -> None:
    weightless = [{**row, "weight": 0.0} for row in events(FIRST["qcd"])]
    write_delphes(skim.data / "qcd_0.root", weightless)

    with pytest.raises(
        FeatureError,
        match=r"'qcd' add up to 0 over its 40 events; .* or `none` if every event counts 1",
    ):
        skim.run_qcd()

    skim.run_qcd(weight="none")
    assert skim.factor() == pytest.approx(1000 / 40)


def test_a_sum_without_a_cross_section_is_refused(skim: Skim) -> None:
    with pytest.raises(ConfigError, match=r"sample 'qcd': sum_of_weights: 400.0 has no effect"):
        skim.run_qcd(sum_of_weights=400, cross_section_pb=None)


@pytest.mark.parametrize("value", [0, -1, True, "abc", "h[0]", [1], float("inf")])
def test_a_sum_is_a_positive_number_or_a_branch_with_its_tree(value: Any) -> None:
    with pytest.raises(ValidationError, match=r"a number above 0, a branch with its tree \(Runs"):
        SampleSettings(name="a", label=0, files=["a"], sum_of_weights=value)
