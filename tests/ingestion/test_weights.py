"""The weight of each sample: a branch, a number of a list, or none; and what is said where it is
not stated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from delphes_files import checked_files, select, source_of, write_delphes
from event_rows import distinct, event_row, lepton
from pydantic import ValidationError

from hep_core.input_errors import InputFileError
from ingestion.errors import MissingBranchError, WrongBranchTypeError
from ingestion.file_info import FileInfo
from ingestion.files import expand, find_input_files, inventory
from ingestion.notes import notes
from ingestion.settings import IngestSettings, SampleSettings
from ingestion.weights import generated_sum, sign_of_a_skim

ROWS = distinct([event_row(electrons=[lepton(40.0 + n, 0, 0)], weight=0.5 * n) for n in range(4)])


def written(path: Path, weights: dict[str, Any]) -> Path:
    """A Delphes file with these branches of weights, and no others."""
    return write_delphes(path, ROWS, without=["Event.Weight"], more=weights)


def notes_of(*files: FileInfo) -> list[str]:
    """Notes about samples without cross-sections."""
    return notes(files, [])


THREE = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize(
    ("branch", "values", "weight", "expected"),
    [
        ("Event.Weight", THREE, "Event.Weight[0]", [0, 3, 6, 9]),
        ("Event.Weight", THREE, "Event.Weight[2]", [2, 5, 8, 11]),
        ("Event.Weight", THREE, "none", [1, 1, 1, 1]),
        ("Event.Weight", [0, 0, 0, 0], "None", [1, 1, 1, 1]),
        ("genWeight", [-1, 2, 3, 2**40], "genWeight", [-1, 2, 3, 2**40]),
        ("genWeight", [True, False, True, True], "genWeight", [1, 0, 1, 1]),
        ("genWeight", [0.1, -0.1, 1e12, 1e-12], "genWeight", [0.1, -0.1, 1e12, 1e-12]),
    ],
)
def test_the_weight_is_the_branch_that_the_sample_states(
    tmp_path: Path, branch: str, values: Any, weight: str, expected: list[float]
) -> None:
    path = written(tmp_path / "a.root", {branch: np.asarray(values)})

    selection = select(path, weight=weight)

    assert selection.table["weight"].to_pylist() == expected
    weights = np.array(expected, np.float64)
    sums = [weights.sum(), np.square(weights).sum()]
    assert selection.tally().weights["entries"] == pytest.approx(sums, rel=1e-15)


@pytest.mark.parametrize(
    ("weight", "kind_name", "message"),
    [
        (
            None,
            WrongBranchTypeError,
            r"'Event.Weight' holds 3 numbers in entry 0; .* `weight` of .* 'Event.Weight\[0\]'",
        ),
        (
            "Event.Weight[3]",
            WrongBranchTypeError,
            r"holds 3 numbers in entry 0; \[3\] \(from 0\) .* `weight` of the sample",
        ),
        (
            "genWeight",
            MissingBranchError,
            r"'genWeight' \(for `weight` of the sample\).*Nearest: Event.Weight",
        ),
    ],
)
def test_several_weights_of_an_event_need_a_position(
    tmp_path: Path, weight: str | None, kind_name: type[Exception], message: str
) -> None:
    path = written(tmp_path / "a.root", {"Event.Weight": THREE})
    with pytest.raises(kind_name, match=message):
        checked_files(path, weight=weight)


def test_branches_named_like_weights_are_listed_instead_of_called_absent(tmp_path: Path) -> None:
    names = {
        name: np.ones(4) for name in ("genWeight", "xsec", "nWeights", "LHEWeight_originalXWGTUP")
    }
    (info,) = checked_files(written(tmp_path / "a.root", names))
    assert info.like_weights == ("genWeight", "xsec", "LHEWeight_originalXWGTUP")
    (message,) = notes_of(info)
    assert "no event weights" not in message
    assert "genWeight, xsec, LHEWeight_originalXWGTUP. State one" in message
    assert notes_of(*checked_files(info.path, weight="none")) == []
    assert notes_of(*checked_files(info.path, weight="genWeight")) == []


def test_collision_data_need_no_mapped_weight(tmp_path: Path) -> None:
    """Neither the weight nor its variations are there; of simulated events each counts."""
    settings = IngestSettings(weights={"up": "LHEWeight[1]", "down": "weight * LHEWeight[2]"})
    data = written(tmp_path / "data.root", {"run": np.arange(4)})
    created = written(tmp_path / "made.root", {"genWeight": np.arange(4.0), "LHEWeight": THREE})
    ones = [1.0] * 4
    for path, weight, up in (
        (data, "none", ones),
        (created, "none", [1, 4, 7, 10]),
        (created, "genWeight", [1, 4, 7, 10]),
    ):
        table = select(path, settings, weight=weight).table
        assert table["weight_up"].to_pylist() == up
        assert table["weight"].to_pylist() == (ones if weight == "none" else [0, 1, 2, 3])
    with pytest.raises(
        MissingBranchError, match=r"(?s)for `weight` of the sample.*for ingest\.weights: up"
    ):
        checked_files(data, settings=settings, weight="genWeight")
    # Events without true classes may be of either kind.
    samples = [
        SampleSettings(name=each.stem, label=0, files=[str(each)], weight="genWeight")
        for each in (data, created)
    ]
    input_files = find_input_files(samples, settings, lambda _: None, needs_weights=False)
    assert [info.weight for info in input_files.infos] == ["none", "genWeight"]
    assert notes_of(*input_files.infos) == []


@pytest.mark.parametrize("weight", ["MissingET.MET", "Jet.PT[0]"])
def test_a_momentum_is_no_weight(tmp_path: Path, weight: str) -> None:
    path = write_delphes(tmp_path / "a.root", ROWS)
    with pytest.raises(WrongBranchTypeError, match="and 'weight' would both be read from branch"):
        checked_files(path, weight=weight)


@pytest.mark.parametrize(
    ("kind_name", "stated", "message"),
    [
        (
            SampleSettings,
            {"weight": "genWeight * puWeight"},
            "Write the product as a branch",
        ),
        (SampleSettings, {"weight": "weight * puWeight"}, "products are not computed"),
        (SampleSettings, {"weight": 1}, "or `none`: every event has weight 1"),
        (IngestSettings, {"weights": {"up": "genWeight * puUp"}}, "products are not computed"),
        (
            IngestSettings,
            {"branch_map": {"weight": "genWeight"}},
            "'weight' belongs to each sample",
        ),
    ],
)
def test_other_words_than_a_branch_are_no_weight(
    kind_name: Any, stated: dict[str, Any], message: str
) -> None:
    sample = {"name": "a", "label": 0, "files": ["a.root"]} if kind_name is SampleSettings else {}
    with pytest.raises(ValidationError) as caught:
        kind_name(**sample, **stated)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("state_before", "state_after", "is_known"),
    [
        (None, None, True),
        (None, "Event.Weight", True),
        ("Event.Weight", None, True),
        (None, "none", False),
    ],
)
def test_files_are_checked_again_when_the_statement_changes(
    tmp_path: Path, state_before: str | None, state_after: str | None, is_known: bool
) -> None:
    path = write_delphes(tmp_path / "a.root", ROWS)
    remembered = {
        str(path): checked_files(path, weight=state_before)[0]._replace(entries=12345, sample="a")
    }
    (info,) = inventory(
        [source_of("a", 0, str(path), weight=state_after)], IngestSettings(), known=remembered
    ).infos
    assert (info.entries == 12345) is is_known


RUNS = {"genEventSumw": np.array([100.0, -20.0]), "genEventCount": np.array([30, 20])}
NUMBERS = np.arange(0, 400, 100)


def counted(
    path: Path,
    histogram: list[float] | None,
    runs: dict[str, Any],
    numbers: Any = None,
    *,
    is_ntuple: bool = False,
) -> Path:
    """A file of four events with what may count the generated ones."""
    written(
        path, {"genWeight": np.ones(4)} | ({} if numbers is None else {"Event.Number": numbers})
    )
    with uproot.update(path) as file:
        if histogram is not None:
            file["counts/h_genWeight"] = (np.array(histogram), np.arange(len(histogram) + 1.0))
        if runs:
            make = file.mkrntuple if is_ntuple else file.mktree
            make("Runs", {name: column.dtype for name, column in runs.items()}).extend(runs)
    return path


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Runs.genEventSumw", 80.0),
        ("Runs.genEventCount", 50.0),
        ("counts/h_genWeight[1]", 12.0),
        ("counts/h_genWeight[2]", 5.0),
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
def test_a_sum_of_weights_is_read_from_a_tree_or_a_histogram(
    tmp_path: Path, message: str, expected: float | str
) -> None:
    runs = {**RUNS, "bad": np.array([1.0, np.nan])} if message == "Runs.bad" else RUNS
    path = counted(tmp_path / "a.root", [12.0, 5.0], runs)
    stated: dict[str, Any] = {
        "name": "a",
        "label": 0,
        "files": [str(path)],
        "cross_section_pb": 1.0,
    }
    sample = SampleSettings(**stated, weight="genWeight", sum_of_weights=message)
    if isinstance(expected, float):
        (info,) = inventory(expand([sample]), IngestSettings()).infos
        assert info.generated == {message: expected}
        (repeated,) = inventory(
            expand([sample]), IngestSettings(), known={str(path): info._replace(size=info.size)}
        ).infos
        assert repeated == info
        return
    with pytest.raises(InputFileError) as caught:
        inventory(expand([sample]), IngestSettings())
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("histogram", "runs", "numbers", "sign"),
    [
        (None, {}, None, None),
        (None, {}, np.zeros(4, np.int64), None),
        (None, {}, np.array([7, 9, 8, 6]), ""),
        (None, {}, NUMBERS, "the numbers 'Event.Number' of its events have gaps: 100 %"),
        ([4.0, 2.0], {}, NUMBERS, ""),
        (
            [12.0, 4.0],
            {},
            None,
            "the histogram 'counts/h_genWeight' holds 12, its tree has 4 entries",
        ),
        ([1e9], RUNS, np.arange(4), "Runs.genEventCount is 50, its tree has 4 entries"),
        ([1e9], {"genEventCount_": np.array([4])}, NUMBERS, ""),
    ],
)
def test_counters_of_generated_events_show_a_skim(
    tmp_path: Path,
    histogram: list[float] | None,
    runs: dict[str, Any],
    numbers: Any,
    sign: str | None,
) -> None:
    path = counted(tmp_path / "a.root", histogram, runs, numbers)
    sample = SampleSettings(name="made", label=0, files=["a.root"], cross_section_pb=2.0)

    (info,) = checked_files(path, weight="none")

    assert info.skim == sign
    sentences = notes([info], [sample])
    assert len(sentences) == (0 if sign == "" else 1)
    for sentence in sentences:
        assert (sign or "Nothing in the files of made shows whether they hold all") in sentence
        assert "`sum_of_weights" in sentence
    for change in ({"cross_section_pb": None}, {"sum_of_weights": 5.0}):
        assert notes([info], [sample.model_copy(update=change)]) == []


@pytest.mark.parametrize("weight", [None, "none"])
@pytest.mark.parametrize(
    ("message", "is_right"),
    [("Runs.genEventSumw", False), ("counts/h_genWeight[1]", False), ("Runs.genEventCount", True)],
)
def test_a_sum_of_weights_in_another_scale_than_the_events_is_refused(
    tmp_path: Path, weight: str | None, message: str, is_right: bool
) -> None:
    path = counted(tmp_path / "a.root", [12.0, 5.0], RUNS)
    (source,) = expand(
        [
            SampleSettings(
                name="a", label=0, files=[str(path)], weight=weight, sum_of_weights=message
            )
        ]
    )
    if is_right:
        assert inventory([source], IngestSettings()).infos[0].generated == {message: 50.0}
        return
    with pytest.raises(
        WrongBranchTypeError, match=r"every event has weight 1\. State their branch as `weight`"
    ):
        inventory([source], IngestSettings())


def test_a_tree_runs_written_as_ntuple_shows_a_skim(tmp_path: Path) -> None:
    (info,) = checked_files(counted(tmp_path / "a.root", None, RUNS, is_ntuple=True), weight="none")
    assert info.skim == "Runs.genEventCount is 50, its tree has 4 entries"


def test_a_damaged_counter_that_nobody_needs_is_no_damage(tmp_path: Path) -> None:
    class Broken:
        def classnames(self, **_: Any) -> dict[str, str]:
            raise ValueError("damaged")

    assert sign_of_a_skim(Broken(), None, 4, "a.root") is None
    with pytest.raises(AttributeError):
        generated_sum(None, "Runs.x", "a.root")
