"""The weight of each sample: a branch, a number of a list, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
from delphes_files import checked_files, select, source_of, write_delphes
from event_rows import distinct, event_row, lepton
from pydantic import ValidationError

from ingestion.errors import MissingBranchError, WrongBranchTypeError
from ingestion.file_info import FileInfo
from ingestion.files import SourceFile, find_input_files, inventory
from ingestion.layout import BranchNames
from ingestion.notes import notes
from ingestion.root_format import open_root
from ingestion.settings import IngestSettings, SampleSettings
from ingestion.weights import weight_text

ROWS = distinct([event_row(electrons=[lepton(40.0 + n, 0, 0)], weight=0.5 * n) for n in range(4)])


def write_weights(path: Path, weights: dict[str, Any]) -> Path:
    """Write a Delphes file whose branches of weights are these; returns its path."""
    return write_delphes(path, ROWS, without=["Event.Weight"], more=weights)


def notes_of(*files: FileInfo) -> list[str]:
    """Notes about samples without cross-sections."""
    return notes(files, [])


#: Three weights of each of four events.
THREE_WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize(
    ("branch", "values", "weight", "expected"),
    [
        ("Event.Weight", THREE_WEIGHTS, "Event.Weight[0]", [0, 3, 6, 9]),
        ("Event.Weight", THREE_WEIGHTS, "Event.Weight[2]", [2, 5, 8, 11]),
        ("Event.Weight", THREE_WEIGHTS, "none", [1, 1, 1, 1]),
        ("Event.Weight", [0, 0, 0, 0], "None", [1, 1, 1, 1]),
        ("genWeight", [-1, 2, 3, 2**40], "genWeight", [-1, 2, 3, 2**40]),
        ("genWeight", [True, False, True, True], "genWeight", [1, 0, 1, 1]),
        ("genWeight", [0.1, -0.1, 1e12, 1e-12], "genWeight", [0.1, -0.1, 1e12, 1e-12]),
    ],
)
def test_the_weight_is_the_branch_that_the_sample_states(
    tmp_path: Path, branch: str, values: Any, weight: str, expected: list[float]
) -> None:
    path = write_weights(tmp_path / "a.root", {branch: np.asarray(values)})

    selection = select(path, weight=weight)

    assert selection.table["weight"].to_pylist() == expected
    weights = np.array(expected, np.float64)
    expected_sums = [weights.sum(), np.square(weights).sum()]
    weight_sums = selection.tally().weights["entries"]
    assert weight_sums == pytest.approx(expected_sums, rel=1e-15)


@pytest.mark.parametrize(
    ("weight", "error", "message"),
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
    tmp_path: Path, weight: str | None, error: type[Exception], message: str
) -> None:
    path = write_weights(tmp_path / "a.root", {"Event.Weight": THREE_WEIGHTS})

    with pytest.raises(error, match=message):
        checked_files(path, weight=weight)


def test_branches_named_like_weights_are_listed_instead_of_called_absent(tmp_path: Path) -> None:
    names = ["genWeight", "xsec", "nWeights", "LHEWeight_originalXWGTUP"]
    path = write_weights(tmp_path / "a.root", dict.fromkeys(names, np.ones(4)))

    (info,) = checked_files(path)

    assert info.like_weights == ("genWeight", "xsec", "LHEWeight_originalXWGTUP")
    (message,) = notes_of(info)
    assert "no event weights" not in message
    assert "genWeight, xsec, LHEWeight_originalXWGTUP. State one" in message
    for weight in ("none", "genWeight"):
        assert notes_of(*checked_files(path, weight=weight)) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.ones(4), "XWeight"),
        (np.ones((4, 1)), "XWeight"),
        (ak.Array([[1.0], [2.0], [3.0], [4.0]]), "XWeight"),
        (THREE_WEIGHTS, "XWeight[0]"),
        (ak.Array([[], [1.0], [2.0], [3.0]]), None),
        (ak.Array(["a", "b", "c", "d"]), None),
    ],
    ids=["number", "array-of-one", "list-of-one", "several", "empty-list", "text"],
)
def test_only_branches_that_can_be_weights_are_offered(
    tmp_path: Path, values: Any, expected: str | None
) -> None:
    path = write_weights(tmp_path / "a.root", {"XWeight": values, "other_weight": np.ones(4)})

    (info,) = checked_files(path)

    assert info.like_weights == ((expected, "other_weight") if expected else ("other_weight",))
    for weight in info.like_weights:
        assert checked_files(path, weight=weight)[0].weight == weight


#: Branches with names as ROOT's macros write them, beside lists and numbers of the same names.
BRACKETS = {"w[0]": np.arange(4.0), "w": np.full((4, 2), 7.0), "v[0]": THREE_WEIGHTS}


@pytest.mark.parametrize(
    ("weight", "expected"),
    [("w[0]", [0, 1, 2, 3]), ("w[1]", [7, 7, 7, 7]), ("v[0][2]", [2, 5, 8, 11])],
)
def test_a_branch_whose_name_ends_in_brackets_comes_before_a_position(
    tmp_path: Path, weight: str, expected: list[float]
) -> None:
    path = write_weights(tmp_path / "a.root", BRACKETS)
    numbers = np.array(expected)

    assert select(path, weight=weight).table["weight"].to_pylist() == expected
    varied = IngestSettings(weights={"up": weight}, pass_through=["w[0]"])
    table = select(path, varied, weight="none").table
    assert table["weight_up"].to_pylist() == expected
    assert table["w[0]"].to_pylist() == [0, 1, 2, 3]
    label_by = {f"{weight} > 2.5": 1, f"{weight} <= 2.5": 0}
    sample = SampleSettings(name="a", label_by=label_by, files=[str(path)], weight="none")
    (info,) = find_input_files([sample], IngestSettings(), lambda _: None).infos
    labels = select(info).table["label"].to_pylist()
    assert labels == (numbers > 2.5).tolist()


def test_collections_and_their_lists_are_no_weights(ttbar_source: SourceFile) -> None:
    with open_root(ttbar_source.path) as file:
        names = BranchNames(file["Delphes"], ttbar_source.path)

        assert weight_text(names, "Event.Weight", 100) == "Event.Weight"
        for branch in ("Event", "Jet.PT"):
            assert branch in names
            assert weight_text(names, branch, 100) == ""


#: A weight and its variations; the files of collision data have none of their branches.
VARIED_WEIGHTS = IngestSettings(weights={"up": "LHEWeight[1]", "down": "weight * LHEWeight[2]"})


@pytest.fixture
def collision_data(tmp_path: Path) -> Path:
    return write_weights(tmp_path / "data.root", {"run": np.arange(4)})


@pytest.fixture
def simulation(tmp_path: Path) -> Path:
    weights = {"genWeight": np.arange(4.0), "LHEWeight": THREE_WEIGHTS}
    return write_weights(tmp_path / "simulation.root", weights)


def test_collision_data_have_the_weight_1(collision_data: Path) -> None:
    table = select(collision_data, VARIED_WEIGHTS, weight="none").table

    assert table["weight"].to_pylist() == [1, 1, 1, 1]
    assert table["weight_up"].to_pylist() == [1, 1, 1, 1]
    with pytest.raises(
        MissingBranchError, match=r"(?s)for `weight` of the sample.*for ingest\.weights: up"
    ):
        checked_files(collision_data, settings=VARIED_WEIGHTS, weight="genWeight")


@pytest.mark.parametrize(
    ("weight", "expected"), [("none", [1, 1, 1, 1]), ("genWeight", [0, 1, 2, 3])]
)
def test_simulated_events_have_the_varied_weights(
    simulation: Path, weight: str, expected: list[float]
) -> None:
    table = select(simulation, VARIED_WEIGHTS, weight=weight).table

    assert table["weight"].to_pylist() == expected
    assert table["weight_up"].to_pylist() == [1, 4, 7, 10]


def test_files_without_true_classes_may_be_data_or_simulation(
    collision_data: Path, simulation: Path
) -> None:
    samples = [
        SampleSettings(name=path.stem, label=0, files=[str(path)], weight="genWeight")
        for path in (collision_data, simulation)
    ]

    files = find_input_files(samples, VARIED_WEIGHTS, lambda _: None, needs_weights=False)

    assert [info.weight for info in files.infos] == ["none", "genWeight"]
    assert notes_of(*files.infos) == []


@pytest.mark.parametrize("weight", ["MissingET.MET", "Jet.PT[0]"])
def test_a_momentum_is_no_weight(tmp_path: Path, weight: str) -> None:
    path = write_delphes(tmp_path / "a.root", ROWS)

    with pytest.raises(WrongBranchTypeError, match="and 'weight' would both be read from"):
        checked_files(path, weight=weight)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ("genWeight * puWeight", "Write the product as a branch"),
        ("weight * puWeight", "products are not computed"),
        (1, "or `none`: every event has weight 1"),
    ],
)
def test_the_weight_of_a_sample_is_one_branch(weight: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SampleSettings(name="a", label=0, files=["a.root"], weight=weight)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": {"up": "genWeight * puUp"}}, "products are not computed"),
        ({"branch_map": {"weight": "genWeight"}}, "'weight' belongs to each sample"),
    ],
)
def test_ingest_settings_state_no_weight_of_a_sample(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        IngestSettings(**settings)


@pytest.mark.parametrize(
    ("old_weight", "new_weight", "is_known"),
    [
        (None, None, True),
        (None, "Event.Weight", True),
        ("Event.Weight", None, True),
        (None, "none", False),
    ],
)
def test_files_are_checked_again_when_the_stated_weight_changes(
    tmp_path: Path, old_weight: str | None, new_weight: str | None, is_known: bool
) -> None:
    path = write_delphes(tmp_path / "a.root", ROWS)
    (old_info,) = checked_files(path, weight=old_weight)
    # A number that only the earlier check can have.
    old_infos = {str(path): old_info._replace(entries=12345, sample="a")}
    source = source_of("a", 0, str(path), weight=new_weight)

    (info,) = inventory([source], IngestSettings(), known=old_infos).infos

    assert (info.entries == 12345) is is_known
