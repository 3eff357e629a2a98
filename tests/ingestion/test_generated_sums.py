"""The sum of the weights of all generated events, which a sample states or files hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from delphes_files import checked_files, source_of, write_delphes
from event_rows import distinct, event_row, lepton

from hep_core.input_errors import InputFileError
from ingestion.errors import WrongBranchTypeError
from ingestion.files import SourceFile, inventory
from ingestion.notes import notes
from ingestion.settings import IngestSettings, SampleSettings
from ingestion.weights import generated_sum, sign_of_a_skim

ROWS = distinct([event_row(electrons=[lepton(40.0 + n, 0, 0)], weight=0.5 * n) for n in range(4)])


RUNS = {"genEventSumw": np.array([100.0, -20.0]), "genEventCount": np.array([30, 20])}
NUMBERS_WITH_GAPS = np.arange(0, 400, 100)


def write_counters(
    path: Path,
    histogram: list[float] | None,
    runs: dict[str, Any],
    numbers: Any = None,
    *,
    is_ntuple: bool = False,
) -> Path:
    """Write a file of four events with counters of the generated ones; returns its path."""
    branches: dict[str, Any] = {"genWeight": np.ones(4)}
    if numbers is not None:
        branches["Event.Number"] = numbers
    write_delphes(path, ROWS, without=["Event.Weight"], more=branches)
    with uproot.update(path) as file:
        if histogram is not None:
            file["counts/h_genWeight"] = (np.array(histogram), np.arange(len(histogram) + 1.0))
        if runs:
            make_tree = file.mkrntuple if is_ntuple else file.mktree
            types = {name: column.dtype for name, column in runs.items()}
            make_tree("Runs", types).extend(runs)
    return path


def source_with_sum(path: Path, sum_of_weights: str, weight: str | None) -> SourceFile:
    """A file of a sample that states where its sum of weights is."""
    return source_of("a", 0, str(path), weight=weight, sum_of_weights=sum_of_weights)


@pytest.mark.parametrize(
    ("sum_of_weights", "expected"),
    [
        ("Runs.genEventSumw", 80.0),
        ("Runs.genEventCount", 50.0),
        ("counts/h_genWeight[1]", 12.0),
        ("counts/h_genWeight[2]", 5.0),
    ],
)
def test_a_sum_of_weights_is_read_from_a_tree_or_a_histogram(
    tmp_path: Path, sum_of_weights: str, expected: float
) -> None:
    path = write_counters(tmp_path / "a.root", [12.0, 5.0], RUNS)
    source = source_with_sum(path, sum_of_weights, "genWeight")

    (info,) = inventory([source], IngestSettings()).infos

    assert info.generated == {sum_of_weights: expected}
    assert inventory([source], IngestSettings(), known={str(path): info}).infos == [info]


@pytest.mark.parametrize(
    ("sum_of_weights", "message"),
    [
        (
            "counts/h_genWeight[3]",
            "lacks 'counts/h_genWeight[3]', the sum_of_weights of the sample. It holds: counts",
        ),
        ("Runs.genEventSumW2", "Nearest: Runs.genEventSumw, Runs.genEventCount"),
        ("Run.genEventSumw", "It holds: Delphes, Runs, counts, counts/h_genWeight. Nearest: "),
        (
            "Delphes.Jet.PT",
            "exactly one is needed. State another one as sum_of_weights of the sample",
        ),
        ("Runs.bad", "'Runs.bad', the sum_of_weights of the sample, is not finite"),
    ],
)
def test_a_sum_of_weights_that_cannot_be_read_is_named(
    tmp_path: Path, sum_of_weights: str, message: str
) -> None:
    runs = {**RUNS, "bad": np.array([1.0, np.nan])}
    path = write_counters(tmp_path / "a.root", [12.0, 5.0], runs)

    with pytest.raises(InputFileError, match=re.escape(message)):
        inventory([source_with_sum(path, sum_of_weights, "genWeight")], IngestSettings())


@pytest.mark.parametrize(
    ("histogram", "runs", "numbers", "sign"),
    [
        (None, {}, None, None),
        (None, {}, np.zeros(4, np.int64), None),
        (None, {}, np.array([7, 9, 8, 6]), ""),
        (None, {}, NUMBERS_WITH_GAPS, "the numbers 'Event.Number' of its events have gaps: 100 %"),
        ([4.0, 2.0], {}, NUMBERS_WITH_GAPS, ""),
        (
            [12.0, 4.0],
            {},
            None,
            "the histogram 'counts/h_genWeight' holds 12, its tree has 4 entries",
        ),
        ([1e9], RUNS, np.arange(4), "Runs.genEventCount is 50, its tree has 4 entries"),
        ([1e9], {"genEventCount_": np.array([4])}, NUMBERS_WITH_GAPS, ""),
    ],
)
def test_counters_of_generated_events_show_a_skim(
    tmp_path: Path,
    histogram: list[float] | None,
    runs: dict[str, Any],
    numbers: Any,
    sign: str | None,
) -> None:
    path = write_counters(tmp_path / "a.root", histogram, runs, numbers)
    sample = SampleSettings(name="made", label=0, files=["a.root"], cross_section_pb=2.0)

    (info,) = checked_files(path, weight="none")

    assert info.skim == sign
    sentences = notes([info], [sample])
    assert len(sentences) == (0 if sign == "" else 1)
    expected = sign or "Nothing in the files of made shows whether they hold all"
    for sentence in sentences:
        assert expected in sentence
        assert "`sum_of_weights" in sentence
    # Without a cross-section nobody needs the sum, and a stated sum answers the question.
    without_cross_section = sample.model_copy(update={"cross_section_pb": None})
    with_sum = sample.model_copy(update={"sum_of_weights": 5.0})
    assert notes([info], [without_cross_section]) == []
    assert notes([info], [with_sum]) == []


@pytest.mark.parametrize("weight", [None, "none"])
@pytest.mark.parametrize("sum_of_weights", ["Runs.genEventSumw", "counts/h_genWeight[1]"])
def test_a_sum_of_weights_in_another_scale_than_the_events_is_refused(
    tmp_path: Path, weight: str | None, sum_of_weights: str
) -> None:
    path = write_counters(tmp_path / "a.root", [12.0, 5.0], RUNS)

    with pytest.raises(
        WrongBranchTypeError, match=r"every event has weight 1\. State their branch as `weight`"
    ):
        inventory([source_with_sum(path, sum_of_weights, weight)], IngestSettings())


def test_only_the_name_of_the_branch_says_whether_it_adds_up_weights(tmp_path: Path) -> None:
    """ATLAS writes both kinds into the tree `sumWeights`."""
    path = write_counters(tmp_path / "a.root", None, {})
    sums = {"totalEvents": np.array([70.0]), "totalEventsWeighted": np.array([90.0])}
    with uproot.update(path) as file:
        file.mktree("sumWeights", {name: column.dtype for name, column in sums.items()})
        file["sumWeights"].extend(sums)
        file["weights/nEvents"] = (np.array([60.0]), np.arange(2.0))

    for number_of_events, expected in (
        ("sumWeights.totalEvents", 70.0),
        ("weights/nEvents[1]", 60.0),
    ):
        (info,) = inventory(
            [source_with_sum(path, number_of_events, "none")], IngestSettings()
        ).infos
        assert info.generated == {number_of_events: expected}
    with pytest.raises(WrongBranchTypeError, match=r"sumWeights\.totalEventsWeighted.*adds up"):
        inventory(
            [source_with_sum(path, "sumWeights.totalEventsWeighted", "none")], IngestSettings()
        )


@pytest.mark.parametrize("weight", [None, "none"])
def test_events_of_weight_1_may_have_a_number_of_events_as_sum(
    tmp_path: Path, weight: str | None
) -> None:
    path = write_counters(tmp_path / "a.root", [12.0, 5.0], RUNS)
    source = source_with_sum(path, "Runs.genEventCount", weight)

    (info,) = inventory([source], IngestSettings()).infos

    assert info.generated == {"Runs.genEventCount": 50.0}


def test_a_tree_runs_written_as_ntuple_shows_a_skim(tmp_path: Path) -> None:
    path = write_counters(tmp_path / "a.root", None, RUNS, is_ntuple=True)

    (info,) = checked_files(path, weight="none")

    assert info.skim == "Runs.genEventCount is 50, its tree has 4 entries"


def test_a_damaged_counter_that_nobody_needs_is_no_damage(tmp_path: Path) -> None:
    class Broken:
        def classnames(self, **_: Any) -> dict[str, str]:
            raise ValueError("damaged")

    assert sign_of_a_skim(Broken(), None, 4, "a.root") is None
    with pytest.raises(AttributeError):
        generated_sum(None, "Runs.x", "a.root")
