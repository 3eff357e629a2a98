"""A sample whose events have their classes by conditions on a branch, through the stages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import uproot
from analyses import Analysis
from delphes_files import write_delphes
from minimal_configs import config_mistakes
from night_files import events
from stages_in_process import run_stages, without_spark

from ingestion.errors import (
    ConflictingFilesError,
    EmptySampleError,
    MissingBranchError,
    WrongBranchTypeError,
)
from pipeline.commands.evaluate_files import evaluate_files
from pipeline.errors import ConfigError
from pipeline.runner import State
from pipeline.stages.evaluation_task import rates_of_run

#: Of 240 events, in turn; every fourth event has no lepton.
FLAVOURS = np.resize([5, -5, 4, 4, 4, 4, 15, 15], 240)
LABEL_BY = {"abs(flavour) == 5": 1, "flavour == 4": 0, "flavour == 15": None}


class Top(Analysis):
    """A file with events of two classes and of none, and a file of one class."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.data.mkdir()
        self.write(FLAVOURS)
        write_delphes(self.data / "light.root", events(1000, 80))

    def write(
        self,
        flavours: Any,
        name: str = "top.root",
        first: int = 0,
        *,
        left_out: int = 0,
        baskets: Sequence[int] = (),
    ) -> None:
        """Write events from `first` on, of which a skim has `left_out` some."""
        rows = events(first, left_out + len(flavours))[left_out:]
        write_delphes(
            self.data / name, rows, more={"flavour": np.asarray(flavours)}, baskets=baskets
        )

    def go(self, *stages: str, label_by: Any = LABEL_BY, top: Any = None, **changes: Any) -> str:
        """Run ingest and features, or the given stages."""
        samples = [
            {
                "name": "top",
                "label_by": label_by,
                "files": [f"{self.data}/top*.root"],
                "cross_section_pb": 120.0,
            },
            {
                "name": "light",
                "label": 0,
                "files": [f"{self.data}/light.root"],
                "cross_section_pb": 80.0,
            },
        ]
        samples[0] |= top or {}
        return self.run(
            *stages, classes=["light", "b"], samples=samples, evaluate={"signal": "b"}, **changes
        )


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Top:
    without_spark(monkeypatch, tmp_path)
    return Top(tmp_path)


@pytest.mark.slow
def test_classes_of_one_sample_go_through_all_stages(top: Top) -> None:
    training = {"workers": 1, "epochs": 1, "batch_size": 16}
    output = top.go(
        train=training,
        model={"names": ["hlf"]},
        ingest={"entries_per_task": 50, "min_track_pt": 0.5},
    )
    note = "60 events of top are of no class (`null` in label_by) and are left out."
    assert f"note: {note}" in output

    counted = top.counters("ingest")["samples"]
    assert {name: row["events"] for name, row in counted.items()} == {
        "top.0": 90,
        "top.1": 30,
        "top": 0,
        "light": 60,
    }
    features = top.version("features")
    files = [str(path) for path in features.folder.glob("*/*.parquet")]
    table = pq.read_table(files, columns=["sample", "label", "weight", "entry"]).to_pylist()
    expected = {"top.0": 0, "top.1": 1, "light": 0}
    assert {(row["sample"], row["label"]) for row in table} == set(expected.items())
    assert all(
        FLAVOURS[row["entry"]] in ((4,), (5, -5))[row["label"]]
        for row in table
        if row["sample"] != "light"
    )
    # The cross-section is that of all 240 events, and each has its share: 120 pb / 240, and 80 pb /
    # 80.
    assert {round(row["weight"], 6) for row in table if row["sample"] != "light"} == {0.5}
    assert {round(row["weight"], 6) for row in table if row["sample"] == "light"} == {1.0}

    cutflow_text = (features.folder / "cutflow.txt").read_text()
    assert "rejected no class: top.0 0, top.1 0, top 60" in cutflow_text
    (in_files,) = (
        line.split() for line in cutflow_text.splitlines() if line.startswith("in the files")
    )
    assert {"200", "60"} < {*in_files}
    cutflow = json.loads((features.folder / "cutflow.json").read_text())
    (first, *_, last) = cutflow["classes"]
    assert {name: row["events"] for name, row in first["columns"].items()} == {
        "light": 120 + 80,
        "b": 60,
    }
    assert {name: row["events"] for name, row in last["columns"].items()} == {
        "light": 90 + 60,
        "b": 30,
    }
    assert cutflow["counters"]["rejected_no_class"] == {"top.0": 0, "top.1": 0, "top": 60}
    config = top.runner().run_folder.config
    rates = rates_of_run(config, {name: top.version(name) for name in ("ingest", "features")})
    assert rates is not None
    per_pb = (config.trigger_luminosity or 0.0) * 1e-36
    assert rates.of_class(1) == pytest.approx(120 * 30 / 240 * per_pb)
    assert rates.of_class(0) == pytest.approx((120 * 90 / 240 + 80 * 60 / 80) * per_pb)

    run_stages(top.folder / "config.yaml", "train", "evaluate", "report")
    metrics = top.counters("evaluate")
    assert metrics["runs"]["hlf"]["events_per_class"].keys() == {"light", "b"}
    assert metrics["rates_before"]["b"] == pytest.approx(120 * 30 / 240 * per_pb)
    page = (top.version("report").folder / "report.html").read_text()
    assert "top.1" in page
    assert note in page

    top.write(FLAVOURS, "new.root", first=5000)
    write_delphes(top.data / "new_light.root", events(7000, 80))
    names = {"top": "new.root", "light": "new_light.root"}
    inputs = [f"{name}={top.data / file}" for name, file in names.items()]
    with pytest.raises(ConfigError, match="there is no sample 'b', and no class of one sample"):
        evaluate_files(top.runner().run_folder, [], [f"b={top.data}/new.root"], None)
    metrics = json.loads(
        (evaluate_files(top.runner().run_folder, [], inputs, None) / "metrics.json").read_text()
    )
    assert metrics["runs"]["hlf"]["events_per_class"] == {"light": 90 + 60, "b": 30}
    assert metrics["rates_before"] == pytest.approx(
        {"light": rates.of_class(0), "b": rates.of_class(1)}
    )


@pytest.mark.parametrize(
    ("flavours", "label_by", "message"),
    [
        (
            FLAVOURS,
            {"flavour == 4": 0, "abs(flavour) == 5": 1},
            ("60 of the 240 events", "no condition", "is 15"),
        ),
        (
            FLAVOURS,
            {"flavour > 0": 0, "flavour == 5": 1, "flavour == -5": 1},
            ("for 30 several", "flavour is 5"),
        ),
        (
            np.where(FLAVOURS == 15, np.nan, FLAVOURS),
            LABEL_BY,
            ("60 of the 240 events", "flavour is nan"),
        ),
    ],
)
def test_events_without_exactly_one_class_are_refused(
    top: Top, flavours: Any, label_by: Any, message: Any
) -> None:
    top.write(flavours)
    with pytest.raises(WrongBranchTypeError) as caught:
        top.go(label_by=label_by)
    assert "top.root" in str(caught.value)
    assert all(phrase in str(caught.value) for phrase in message)


@pytest.mark.parametrize(
    ("flavours", "condition"),
    [(FLAVOURS, "flavour % (flavour - 4) == 1"), (FLAVOURS * 1.0, "(flavour & 4) == 4")],
)
def test_a_condition_without_a_result_is_refused(top: Top, flavours: Any, condition: str) -> None:
    top.write(flavours)
    with pytest.raises(
        WrongBranchTypeError,
        match=r"top\.root: a condition of label_by cannot be calculated in entries",
    ):
        top.go("ingest", label_by={condition: 1, f"not {condition}": 0})


@pytest.mark.parametrize("kind_name", [np.bool_, np.int8])
def test_sums_of_flags_and_products_of_short_integers_wrapped(top: Top, kind_name: Any) -> None:
    flags = {"is_b": np.abs(FLAVOURS) == 5, "is_c": FLAVOURS == 4, "is_charged": FLAVOURS != 15}
    write_delphes(
        top.data / "top.root",
        events(0, 240),
        more={name: flag.astype(kind_name) for name, flag in flags.items()},
    )
    two = {
        "is_b + is_charged == 2": 1,
        "is_c - is_b == 1": 0,
        "(is_b + is_c + is_charged) * 300 == 0": None,
    }
    top.go("ingest", label_by=two)
    counted = top.counters("ingest")["samples"]
    assert {name: counted[name]["entries"] for name in ("top.1", "top.0", "top")} == {
        "top.1": 60,
        "top.0": 120,
        "top": 60,
    }


def test_a_branch_that_is_not_there_and_a_class_without_events_are_refused(top: Top) -> None:
    with pytest.raises(
        MissingBranchError, match=r"'flavours' \(for `label_by` of the sample\). Nearest: flavour,"
    ):
        top.go(label_by={"flavours == 5": 1})
    with pytest.raises(WrongBranchTypeError, match=r"no list of numbers per event.*label_by"):
        top.go(label_by={"flavour[0] == 5": 1})
    with pytest.raises(EmptySampleError, match=r"sample 'top\.0'"):
        top.go(label_by={"abs(flavour) != 3": 1, "flavour == 3": 0})


def test_another_condition_is_stale_and_read_again(top: Top) -> None:
    top.go()
    assert "up to date" in top.go("ingest")
    second = {**LABEL_BY, "flavour == 15": 1}
    output = top.go(label_by=second)
    assert "1 files read, 1 reused" in output
    assert top.counters("ingest")["samples"]["top.1"]["events"] == 90
    # Other words for the same classes give the same events.
    top.go("ingest", label_by={"abs(flavour) == 5 or flavour == 15": 1, "flavour == 4": 0})
    assert [planned_stage.state for planned_stage in top.runner().plan()[:2]] == [
        State.FRESH,
        State.FRESH,
    ]


def test_copies_are_dropped_where_the_same_conditions_give_them_their_class(top: Top) -> None:
    # Of several ranges each, which begin at other entries.
    top.write(FLAVOURS, baskets=[8, 8, 224])
    top.write(FLAVOURS[8:24], "top_skim.root", left_out=8, baskets=[8, 8])
    with pytest.raises(ConflictingFilesError, match="16 events are there twice"):
        top.go(ingest={"entries_per_task": 8})
    drop = {"on_duplicate": "drop", "entries_per_task": 8}
    output = top.go(ingest=drop)
    assert "16 copies left out" in output
    assert top.counters("ingest")["samples"]["top"]["rejected_no_class"] == 60
    write_delphes(top.data / "light.root", events(0, 16))
    with pytest.raises(ConflictingFilesError, match="in two classes"):
        top.go(ingest=drop)
    # In another class of the same sample they were dropped without a word.
    write_delphes(top.data / "light.root", events(1000, 80))
    second = FLAVOURS[8:24].copy()
    second[9] = 4
    top.write(second, "top_skim.root", left_out=8, baskets=[8, 8])
    with pytest.raises(
        ConflictingFilesError, match=r"entry 9 of .*top_skim\.root equals entry 17 .*in two classes"
    ):
        top.go(ingest=drop)


def test_dropped_copies_do_not_count_in_the_sum_of_weights(top: Top) -> None:
    for name, index in (("top.root", 240), ("top_skim.root", 16)):
        top.write(FLAVOURS[:index], name)
        with uproot.update(top.data / name) as file:
            file.mktree("Runs", {"sumw": np.float64}).extend({"sumw": np.array([float(index)])})
    every = {**LABEL_BY, "flavour == 15": 0}
    with pytest.raises(
        ConflictingFilesError,
        match=r"sample 'top': 16 events are copies and are dropped, but the sums",
    ):
        top.go(label_by=every, ingest={"on_duplicate": "drop"}, top={"sum_of_weights": "Runs.sumw"})


def test_a_file_skipped_for_its_classes_leaves_ingest_up_to_date(top: Top) -> None:
    skip = {"on_bad_file": "skip", "max_bad_files": 1}
    top.write([*FLAVOURS[:15], 21], "top_other.root", first=3000)
    assert "top_other.root: 1 of the 16 events" in top.go(ingest=skip)
    assert [planned_stage.state for planned_stage in top.runner().plan()[:2]] == [
        State.FRESH,
        State.FRESH,
    ]
    assert "2 files read, 1 reused" in top.go(
        ingest=skip, label_by={**LABEL_BY, "flavour == 21": None}
    )
    assert top.counters("ingest")["samples"]["top"]["rejected_no_class"] == 60 + 3 + 1


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"label": 0, "label_by": LABEL_BY}, "both label and label_by"),
        ({"label_by": {}}, "no label and label_by"),
        ({"label_by": {"f == 1": None}}, "label_by gives no event a class"),
        ({"label_by": {"f": 1}}, "is no condition on branches"),
        ({"label_by": {"f == 1": 3}}, "has the label 3, but classes has only 3 names"),
    ],
)
def test_mistakes_of_the_config(tmp_path: Path, sample: dict[str, Any], message: str) -> None:
    remaining = [{"name": f"s{label}", "label": label, "files": ["a.root"]} for label in range(3)]
    assert message in config_mistakes(
        tmp_path, samples=[*remaining, {"name": "top", "files": ["b.root"], **sample}]
    )
