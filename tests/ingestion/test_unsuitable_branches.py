"""Branches that hold no number per event: all keys of the config refuse them in the same words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import awkward as ak
import numpy as np
import pytest
import uproot
from delphes_files import ntuple_columns, source_of
from event_rows import event_row, lepton

from ingestion.errors import WrongBranchTypeError
from ingestion.files import inventory
from ingestion.settings import IngestSettings

NUM_EVENTS: Final = 3
BRANCH_MAP: Final = {"met": "MissingET_MET", "met_phi": "MissingET_Phi"}
PROBLEMS: Final = {
    "Record": r"holds several numbers: '\S*Record\.a' or '\S*Record\.b'",
    "Jet": r"holds several numbers: '\S*Jet\.PT' or '\S*Jet\.Eta'",
    "Text": "holds text; a number per event is needed",
    "Nested": r"holds 'var \* var \* float64' per event; a number per event is needed",
}


@pytest.fixture(scope="module")
def ntuple(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with an RNTuple of events, and one of sums, that both have unsuitable fields."""
    rows = [event_row(electrons=[lepton(40.0, 0, 0)], weight=1.0)] * NUM_EVENTS
    columns = ntuple_columns(rows)
    numbers = np.arange(float(NUM_EVENTS))
    unsuitable = {
        "Record": ak.zip({"a": numbers, "b": numbers}),
        "Jet": columns["Jet"],
        "Text": ak.Array(["text"] * NUM_EVENTS),
        "Nested": ak.Array([[[1.0]]] * NUM_EVENTS),
    }
    path = tmp_path_factory.mktemp("ntuple") / "a.root"
    with uproot.recreate(path) as file:
        file.mkrntuple("Delphes", columns | unsuitable)
        file.mkrntuple("Runs", unsuitable)
    return path


def problem_of(path: Path, settings: dict[str, Any], **stated: Any) -> str:
    """The error about a file that is read with some settings, of a sample that states some keys."""
    stated = {"weight": "Weight", **stated}
    source = source_of("sample", stated.pop("label", 0), str(path), **stated)
    with pytest.raises(WrongBranchTypeError) as caught:
        inventory([source], IngestSettings(**{"branch_map": BRANCH_MAP, **settings}))
    return str(caught.value)


@pytest.mark.parametrize("field", PROBLEMS)
@pytest.mark.parametrize(
    "key", ["met", "jets.count", "pass_through", "weights", "weight", "label_by", "sum_of_weights"]
)
def test_each_key_of_a_number_refuses_an_unsuitable_branch_in_the_same_words(
    ntuple: Path, field: str, key: str
) -> None:
    settings: dict[str, dict[str, Any]] = {
        "met": {"branch_map": {**BRANCH_MAP, "met": field}},
        "jets.count": {"branch_map": {**BRANCH_MAP, "jets.count": field}},
        "pass_through": {"pass_through": [field]},
        "weights": {"weights": {"up": field}},
    }
    stated: dict[str, dict[str, Any]] = {
        "weight": {"weight": field},
        "label_by": {"label": None, "label_by": {f"{field} == 1": 0, f"{field} != 1": 1}},
        "sum_of_weights": {"sum_of_weights": f"Runs.{field}"},
    }

    problem = problem_of(ntuple, settings.get(key, {}), **stated.get(key, {}))

    assert re.search(PROBLEMS[field], problem), problem


@pytest.mark.parametrize("weight", ["Nested", "Nested[0]", "Text", "Text[0]"])
def test_no_position_is_proposed_where_it_would_be_refused(ntuple: Path, weight: str) -> None:
    assert problem_of(ntuple, {}, weight=weight).endswith("Correct `weight` of the sample.")
