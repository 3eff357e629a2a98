"""A sample whose events have their classes by conditions on a branch, through the stages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import uproot
from analyses import Analysis
from delphes_files import write_delphes
from minimal_configs import MINIMAL, config_mistakes
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
        num_skipped: int = 0,
        baskets: Sequence[int] = (),
    ) -> None:
        """Write the events from `first` on, of which a skim lacks the first `num_skipped`."""
        rows = events(first, num_skipped + len(flavours))[num_skipped:]
        branches = {"flavour": np.asarray(flavours)}
        write_delphes(self.data / name, rows, more=branches, baskets=baskets)

    def run_samples(
        self, *stages: str, label_by: Any = LABEL_BY, top: Any = None, **changes: Any
    ) -> str:
        """Run ingest and features, or the named stages; returns their output."""
        top_sample = {
            "name": "top",
            "label_by": label_by,
            "files": [f"{self.data}/top*.root"],
            "cross_section_pb": 120.0,
        }
        light_sample = {
            "name": "light",
            "label": 0,
            "files": [f"{self.data}/light.root"],
            "cross_section_pb": 80.0,
        }
        return self.run(
            *stages,
            classes=["light", "b"],
            samples=[top_sample | (top or {}), light_sample],
            evaluate={"signal": "b"},
            **changes,
        )

    def sample_counts(self, counter: str) -> dict[str, int]:
        """A counter of ingest for each sample and class of `top`; 0 where it is not counted."""
        samples = self.counters("ingest")["samples"]
        return {name: counts.get(counter, 0) for name, counts in samples.items()}


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Top:
    without_spark(monkeypatch, tmp_path)
    return Top(tmp_path)


class EvaluatedTop(NamedTuple):
    """The example after all stages, with the output of the first two."""

    top: Top
    output: str


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvaluatedTop]:
    folder = tmp_path_factory.mktemp("top")
    with pytest.MonkeyPatch.context() as patch:
        without_spark(patch, folder)
        top = Top(folder)
        output = top.run_samples(
            train={"workers": 1, "epochs": 1, "batch_size": 16},
            model={"names": ["hlf"]},
            ingest={"entries_per_task": 50, "min_track_pt": 0.5},
        )
        run_stages(folder / "config.yaml", "train", "evaluate", "report")
        yield EvaluatedTop(top, output)


@pytest.mark.slow
def test_events_of_no_class_are_left_out_and_noted(evaluated: EvaluatedTop) -> None:
    top = evaluated.top

    note = "60 events of top are of no class (`null` in label_by) and are left out."
    assert f"note: {note}" in evaluated.output
    page = (top.folder_of("report") / "report.html").read_text()
    assert "top.1" in page
    assert note in page
    assert top.sample_counts("events") == {"top.0": 90, "top.1": 30, "top": 0, "light": 60}


@pytest.mark.slow
def test_each_event_has_the_class_of_its_condition_and_the_weight_of_its_sample(
    evaluated: EvaluatedTop,
) -> None:
    files = [str(path) for path in evaluated.top.folder_of("features").glob("*/*.parquet")]
    columns = ["sample", "label", "weight", "entry"]
    table = pq.read_table(files, columns=columns).to_pandas()

    labels = {(row.sample, row.label) for row in table.itertuples()}
    assert labels == {("top.0", 0), ("top.1", 1), ("light", 0)}
    is_light = table["sample"] == "light"
    top = table[~is_light]
    assert ((np.abs(FLAVOURS[top["entry"]]) == 5) == (top["label"] == 1)).all()
    # A cross-section is that of all events of its files: 120 pb / 240, and 80 pb / 80.
    assert np.unique(top["weight"]) == pytest.approx([0.5])
    assert np.unique(table[is_light]["weight"]) == pytest.approx([1.0])


@pytest.mark.slow
def test_the_cutflow_counts_events_without_a_class_apart(evaluated: EvaluatedTop) -> None:
    folder = evaluated.top.folder_of("features")
    cutflow_text = (folder / "cutflow.txt").read_text()
    cutflow = json.loads((folder / "cutflow.json").read_text())

    assert "rejected no class: top.0 0, top.1 0, top 60" in cutflow_text
    (in_files,) = (line for line in cutflow_text.splitlines() if line.startswith("in the files"))
    assert {"200", "60"} < {*in_files.split()}
    first, last = cutflow["classes"][0]["columns"], cutflow["classes"][-1]["columns"]
    assert (first["light"]["events"], first["b"]["events"]) == (120 + 80, 60)
    assert (last["light"]["events"], last["b"]["events"]) == (90 + 60, 30)
    assert cutflow["counters"]["rejected_no_class"] == {"top.0": 0, "top.1": 0, "top": 60}


@pytest.mark.slow
def test_rates_of_classes_share_the_cross_section_of_their_sample(evaluated: EvaluatedTop) -> None:
    top = evaluated.top
    luminosity = top.runner().run_folder.config.trigger_luminosity
    assert luminosity is not None
    per_pb = luminosity * 1e-36

    rates = top.rates()

    assert rates.of_class(1) == pytest.approx(120 * 30 / 240 * per_pb)
    assert rates.of_class(0) == pytest.approx((120 * 90 / 240 + 80 * 60 / 80) * per_pb)
    metrics = top.counters("evaluate")
    assert metrics["runs"]["hlf"]["events_per_class"].keys() == {"light", "b"}
    assert metrics["rates_before"]["b"] == pytest.approx(rates.of_class(1))


@pytest.mark.slow
def test_further_files_are_evaluated_in_the_classes_of_their_sample(
    evaluated: EvaluatedTop,
) -> None:
    top = evaluated.top
    top.write(FLAVOURS, "new.root", first=5000)
    write_delphes(top.data / "new_light.root", events(7000, 80))
    inputs = [f"top={top.data}/new.root", f"light={top.data}/new_light.root"]
    run_folder = top.runner().run_folder

    folder = evaluate_files(run_folder, [], inputs, None)

    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["runs"]["hlf"]["events_per_class"] == {"light": 90 + 60, "b": 30}
    rates = top.rates().of_classes(["light", "b"])
    assert metrics["rates_before"] == pytest.approx(rates)
    with pytest.raises(ConfigError, match="there is no sample 'b', and no class of one sample"):
        evaluate_files(run_folder, [], [f"b={top.data}/new.root"], None)


@pytest.mark.parametrize(
    ("flavours", "label_by", "phrases"),
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
    ids=["no class", "two classes", "nan"],
)
def test_events_without_exactly_one_class_are_refused(
    top: Top, flavours: Any, label_by: Any, phrases: tuple[str, ...]
) -> None:
    top.write(flavours)

    with pytest.raises(WrongBranchTypeError, match=r"top\.root") as caught:
        top.run_samples(label_by=label_by)

    message = str(caught.value)
    for phrase in phrases:
        assert phrase in message


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
        top.run_samples("ingest", label_by={condition: 1, f"not {condition}": 0})


@pytest.mark.parametrize("dtype", [np.bool_, np.int8])
def test_sums_of_flags_and_products_of_short_integers_do_not_wrap(top: Top, dtype: Any) -> None:
    flags = {
        "is_b": (np.abs(FLAVOURS) == 5).astype(dtype),
        "is_c": (FLAVOURS == 4).astype(dtype),
        "is_charged": (FLAVOURS != 15).astype(dtype),
    }
    write_delphes(top.data / "top.root", events(0, 240), more=flags)
    label_by = {
        "is_b + is_charged == 2": 1,
        "is_c - is_b == 1": 0,
        "(is_b + is_c + is_charged) * 300 == 0": None,
    }

    top.run_samples("ingest", label_by=label_by)

    assert top.sample_counts("entries").items() >= {"top.1": 60, "top.0": 120, "top": 60}.items()


@pytest.mark.parametrize(
    ("label_by", "error", "message"),
    [
        (
            {"flavours == 5": 1},
            MissingBranchError,
            r"'flavours' \(for `label_by` of the sample\). Nearest: flavour,",
        ),
        ({"flavour[0] == 5": 1}, WrongBranchTypeError, r"no list of numbers per event.*label_by"),
        ({"abs(flavour) != 3": 1, "flavour == 3": 0}, EmptySampleError, r"sample 'top\.0'"),
    ],
)
def test_a_missing_branch_and_a_class_without_events_are_refused(
    top: Top, label_by: dict[str, int], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        top.run_samples(label_by=label_by)


def test_another_condition_makes_its_files_stale(top: Top) -> None:
    top.run_samples()
    assert "up to date" in top.run_samples("ingest")

    output = top.run_samples(label_by={**LABEL_BY, "flavour == 15": 1})
    assert "1 files read, 1 reused" in output
    assert top.sample_counts("events")["top.1"] == 90

    # Another spelling of the same classes gives the same events.
    respelled = {"abs(flavour) == 5 or flavour == 15": 1, "flavour == 4": 0}
    top.run_samples("ingest", label_by=respelled)
    assert top.states() == [State.FRESH, State.FRESH]


def test_copies_are_dropped_where_the_same_conditions_give_them_their_class(top: Top) -> None:
    # Both files have several ranges, which begin at different entries.
    top.write(FLAVOURS, baskets=[8, 8, 224])
    top.write(FLAVOURS[8:24], "top_skim.root", num_skipped=8, baskets=[8, 8])
    with pytest.raises(ConflictingFilesError, match="16 events are there twice"):
        top.run_samples(ingest={"entries_per_task": 8})

    output = top.run_samples(ingest={"on_duplicate": "drop", "entries_per_task": 8})

    assert "16 copies left out" in output
    assert top.sample_counts("rejected_no_class")["top"] == 60


def test_copies_in_two_classes_are_never_dropped(top: Top) -> None:
    drop = {"on_duplicate": "drop", "entries_per_task": 8}
    write_delphes(top.data / "light.root", events(0, 16))
    with pytest.raises(ConflictingFilesError, match="in two classes"):
        top.run_samples(ingest=drop)

    # The two classes may be those of one sample.
    write_delphes(top.data / "light.root", events(1000, 80))
    flavours = FLAVOURS[8:24].copy()
    flavours[9] = 4
    top.write(flavours, "top_skim.root", num_skipped=8, baskets=[8, 8])
    with pytest.raises(
        ConflictingFilesError, match=r"entry 9 of .*top_skim\.root equals entry 17 .*in two classes"
    ):
        top.run_samples(ingest=drop)


def test_a_sum_of_weights_over_files_with_copies_is_refused(top: Top) -> None:
    for name, num_events in (("top.root", 240), ("top_skim.root", 16)):
        top.write(FLAVOURS[:num_events], name)
        with uproot.update(top.data / name) as file:
            runs = file.mktree("Runs", {"sumw": np.float64})
            runs.extend({"sumw": np.array([float(num_events)])})

    with pytest.raises(
        ConflictingFilesError,
        match=r"sample 'top': 16 events are copies and are dropped, but the sums",
    ):
        top.run_samples(
            label_by={**LABEL_BY, "flavour == 15": 0},
            ingest={"on_duplicate": "drop"},
            top={"sum_of_weights": "Runs.sumw"},
        )


def test_a_file_skipped_for_its_classes_leaves_ingest_up_to_date(top: Top) -> None:
    skip = {"on_bad_file": "skip", "max_bad_files": 1}
    top.write([*FLAVOURS[:15], 21], "top_other.root", first=3000)

    assert "top_other.root: 1 of the 16 events" in top.run_samples(ingest=skip)
    assert top.states() == [State.FRESH, State.FRESH]

    output = top.run_samples(ingest=skip, label_by={**LABEL_BY, "flavour == 21": None})
    assert "2 files read, 1 reused" in output
    assert top.sample_counts("rejected_no_class")["top"] == 60 + 3 + 1


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
def test_the_config_names_a_mistake_in_label_by(
    tmp_path: Path, sample: dict[str, Any], message: str
) -> None:
    samples = [
        *MINIMAL["samples"],
        {"name": "top", "files": ["b.root"], **sample},
    ]

    assert message in config_mistakes(tmp_path, samples=samples)
