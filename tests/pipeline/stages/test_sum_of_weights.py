"""Samples whose files hold a part of the generated events: their sum of weights, stated or summed
over the files."""

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
from pipeline.stages.evaluation_task import rates_of_run

CROSS_SECTIONS = {"qcd": 1000.0, "ttbar": 100.0, "wjets": 10.0}


class Skim(Night):
    """The sample `qcd` is a skim: of its 40 events each of weight 1 there were 400."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        add_runs(self.data / "qcd_0.root", 250.0, 150.0)

    def stated(self, **of_qcd: Any) -> list[dict[str, Any]]:
        """Samples of a config."""
        return [
            {
                "name": name,
                "label": label,
                "files": [f"{self.data}/{name}*.root"],
                "cross_section_pb": value,
            }
            | (of_qcd if name == "qcd" else {})
            for label, (name, value) in enumerate(CROSS_SECTIONS.items())
        ]

    def factor(self) -> float:
        """Physics weight of an event of `qcd`."""
        normalisation = self.counters("features")["normalisation"]["qcd"]
        return float(normalisation["factor"])

    def shares(self) -> list[float]:
        """Weighted efficiency of `qcd` after each step."""
        cutflow = json.loads((self.version("features").folder / "cutflow.json").read_text())[
            "samples"
        ]
        return [step["columns"]["qcd"]["weighted_efficiency"]["value"] for step in cutflow]


def add_runs(path: Path, *sums: float, branch: str = "genEventSumw") -> None:
    """Add a tree of runs, as NanoAOD has it."""
    with uproot.update(path) as file:
        counts = np.array(sums)
        file.mktree("Runs", {branch: np.float64, "genEventCount": np.int64}).extend(
            {branch: counts, "genEventCount": counts.astype(np.int64)}
        )


@pytest.fixture
def skim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Skim:
    without_spark(monkeypatch, tmp_path)
    return Skim(tmp_path)


def test_a_skim_with_the_cross_section_of_the_sample_is_noted(skim: Skim) -> None:
    output = skim.run(samples=skim.stated())
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
    assert skim.shares()[0] == 1.0

    output = skim.run(samples=skim.stated(sum_of_weights="Runs.genEventSumw"))
    assert "looks like a skim" not in output
    assert skim.factor() == pytest.approx(1000 / 400)
    # Of 40 events 30 have a lepton, which all pass.
    assert (skim.shares()[0], skim.shares()[-1]) == pytest.approx((0.1, 30 / 400))
    assert "Efficiencies of weights are relative to all generated events of: qcd" in output
    upstream = {name: skim.version(name) for name in ("ingest", "features")}
    config = skim.runner().run_folder.config
    rates = rates_of_run(config, upstream)
    assert rates is not None
    assert rates.of_samples["qcd"].value == pytest.approx(
        1000 * 30 / 400 * (config.trigger_luminosity or 0.0) * 1e-36
    )


def test_the_sum_follows_the_files_and_a_number_makes_the_features_stale_only(skim: Skim) -> None:
    named = skim.stated(sum_of_weights="Runs.genEventSumw")
    skim.run(samples=named)
    write_delphes(skim.data / "qcd_1.root", events(500))
    with pytest.raises(
        MissingBranchError, match=r"qcd_1\.root lacks 'Runs\.genEventSumw', the sum_of_weights of"
    ):
        skim.run(samples=named)
    add_runs(skim.data / "qcd_1.root", 100.0)
    # No event of it passed the skim.
    add_runs(write_delphes(skim.data / "qcd_2.root", []), 500.0)
    assert "1 files read, 3 reused" in skim.run(samples=named)
    assert skim.factor() == pytest.approx(1000 / 1000)
    output = skim.run(samples=skim.stated(sum_of_weights=2000))
    assert "ingest: up to date" not in output
    assert "0 files read" in output
    output = skim.run(samples=skim.stated(sum_of_weights=2500))
    assert "ingest: up to date" in output
    assert "sum_of_weights changed" in output
    assert skim.factor() == pytest.approx(1000 / 2500)
    skim.run("ingest", samples=named)
    assert [planned_stage.state for planned_stage in skim.runner().plan()[:2]] == [
        State.FRESH,
        State.STALE,
    ]


def test_files_that_are_left_out_make_a_stated_number_wrong(skim: Skim) -> None:
    (skim.data / "qcd_1.root").write_text("this is text, not ROOT, and long enough")
    skip = {"on_bad_file": "skip"}
    output = skim.run(samples=skim.stated(sum_of_weights=600.0), ingest=skip)
    assert (
        "note: sum_of_weights of qcd is a number for all files, and 1 of them are left out"
        in output
    )
    output = skim.run(samples=skim.stated(sum_of_weights="Runs.genEventSumw"), ingest=skip)
    assert "sum_of_weights of qcd" not in output
    assert skim.factor() == pytest.approx(1000 / 400)


def test_sums_in_files_with_copies_count_twice(skim: Skim) -> None:
    write_delphes(skim.data / "qcd_1.root", events(FIRST["qcd"])[:8])
    add_runs(skim.data / "qcd_1.root", 400.0)
    with pytest.raises(
        ConflictingFilesError, match=r"sample 'qcd': 8 events are copies .* count them twice"
    ):
        skim.run(
            samples=skim.stated(sum_of_weights="Runs.genEventSumw"), ingest={"on_duplicate": "drop"}
        )
    skim.run(samples=skim.stated(sum_of_weights=400), ingest={"on_duplicate": "drop"})
    assert skim.factor() == pytest.approx(1000 / 400)


def test_a_sum_below_that_of_the_events_read_is_refused(skim: Skim) -> None:
    with pytest.raises(
        FeatureError,
        match=r"sample 'qcd': .* read add up to 40, .* generated events, 39 \(sum_of_w",
    ):
        skim.run(samples=skim.stated(sum_of_weights=39))


def test_weights_of_zero_name_the_way_out(skim: Skim) -> None:
    write_delphes(
        skim.data / "qcd_0.root", [{**row, "weight": 0.0} for row in events(FIRST["qcd"])]
    )
    with pytest.raises(
        FeatureError,
        match=r"'qcd' add up to 0 over its 40 events; .* or `none` if every event counts 1",
    ):
        skim.run(samples=skim.stated())
    skim.run(samples=skim.stated(weight="none"))
    assert skim.factor() == pytest.approx(1000 / 40)


def test_a_sum_without_a_cross_section_has_no_effect_and_is_refused(skim: Skim) -> None:
    with pytest.raises(ConfigError, match=r"sample 'qcd': sum_of_weights: 400.0 has no effect"):
        skim.run(samples=skim.stated(sum_of_weights=400, cross_section_pb=None))
    for value in (0, -1, True, "abc", "h[0]", [1], float("inf")):
        with pytest.raises(
            ValidationError, match=r"a number above 0, a branch with its tree \(Runs"
        ):
            SampleSettings(name="a", label=0, files=["a"], sum_of_weights=value)  # type: ignore[arg-type]
