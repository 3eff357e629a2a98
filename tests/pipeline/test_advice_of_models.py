"""Errors and notes of commands whose settings come from a model advise no keys of a config."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from delphes_files import PARTICLE_BRANCHES, write_delphes
from event_rows import Row, event_row, jet, lepton

from features.settings import FeatureSettings
from hep_core.input_errors import InputFileError
from ingestion import tally
from ingestion.errors import BadFilesError
from ingestion.notes import unusual_content
from models.prediction import Candidate
from pipeline.runs.trained_models import FoundModel
from pipeline.scoring import EventClassifier
from pipeline.scoring_advice import advise_on_model
from pipeline.scoring_notes import content_notes

#: Advice to set a key, such as `ingest.tree`; a statement may name one.
ADVISED_KEY = re.compile(
    r"(?i)\b(set|under|in|lower|map|needs?|raise|loosen) `?(ingest|features)\b"
)
SELECTED = event_row(electrons=[lepton(40.0, 0.5, 0.5)])
TWO_JETS = event_row(jets=[jet(60.0, 0.1, 0.2), jet(50.0, 0.1, 0.2)])
OF_DEGREES = event_row(electrons=[lepton(40.0, 0.5, 170.0)])


def classifier() -> EventClassifier:
    """A classifier whose model is never asked for scores."""
    network: Any = SimpleNamespace(inputs=("hlf",))
    definitions = FeatureSettings().model_dump(mode="json")
    candidate = Candidate("hlf", network)
    found = FoundModel(candidate, ["QCD", "ttbar"], definitions, None, {"min_lepton_pt": 23.0})
    return EventClassifier.from_model(found)


def read_files(files: Sequence[Path], keep: Sequence[str]) -> None:
    """Read the files as `predict` does, to their first scores."""
    model = classifier()
    settings, infos = model.files([str(path) for path in files], str, keep=keep)
    for info in infos:
        list(model.entries(info, settings))


@pytest.mark.parametrize(
    ("events", "options", "keep", "message"),
    [
        ([SELECTED], {"tree": "Events"}, [], "has no tree 'Delphes'"),
        ([SELECTED], {"rename": {"Jet.PT": "Jets.PT"}}, [], "lacks 1 needed branch"),
        ([SELECTED], {"without": PARTICLE_BRANCHES}, [], "lacks 14 needed branches"),
        ([SELECTED], {"more": {"Jet.BTag": np.array([0.5])}}, [], "Jet.BTag"),
        ([OF_DEGREES], {}, [], "radians are needed"),
        ([SELECTED | {"met": -1.0}], {}, [], "no missing energy is negative"),
    ],
)
def test_errors_of_files_say_that_the_model_decides(
    tmp_path: Path, events: list[Row], options: dict[str, Any], keep: list[str], message: str
) -> None:
    files = [write_delphes(tmp_path / f"{name}.root", events, **options) for name in ("a", "b")]

    for num_files in (1, 2):
        with pytest.raises(InputFileError) as raised:
            read_files(files[:num_files], keep)

        text = str(raised.value)
        assert message in text
        assert "The model decides how files are read" in text
        assert not ADVISED_KEY.search(text), text


@pytest.mark.parametrize(
    ("branch", "message"),
    [("Jet.PT", "holds 2 numbers in entry 0"), ("Jet.PTT", "Nearest: Jet.PT")],
)
def test_errors_of_branches_to_keep_name_the_option(
    tmp_path: Path, branch: str, message: str
) -> None:
    file = write_delphes(tmp_path / "a.root", [TWO_JETS])

    with pytest.raises(InputFileError) as raised:
        read_files([file], [branch])

    assert message in str(raised.value)
    assert "--keep" in str(raised.value)
    assert not ADVISED_KEY.search(str(raised.value))


def test_an_error_keeps_its_remedy_on_the_way_from_a_task() -> None:
    error = InputFileError("it is wrong.", "Set ingest.tree.")

    sent = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert str(sent) == "it is wrong. Set ingest.tree."
    assert str(sent.with_remedy("Take another file.")) == "it is wrong. Take another file."
    assert str(sent.with_remedy("")) == str(sent)
    several = BadFilesError.listing([("a.root", sent), ("b.root", InputFileError("it is gone."))])
    several = pickle.loads(pickle.dumps(several))  # noqa: S301 - our own bytes
    text_with_remedy = str(several.with_remedy("Take another file."))
    assert "Set ingest.tree." in str(several)
    assert "- it is wrong. Take another file.\n- it is gone." in text_with_remedy
    assert "ingest" not in text_with_remedy
    # No key of the config helps against some errors, and so no other remedy replaces theirs.
    assert str(InputFileError("it is gone.").with_remedy("Take another file.")) == "it is gone."


def test_an_error_without_a_remedy_in_the_config_passes_with_its_own_cause() -> None:
    cause = OSError(5, "Input/output error")

    with pytest.raises(InputFileError) as raised, advise_on_model(keeps_branches=False):
        raise InputFileError("it is gone.") from cause

    assert str(raised.value) == "it is gone."
    assert raised.value.__cause__ is cause


def test_notes_of_scores_say_once_that_the_model_decides() -> None:
    counts = {
        "events": 100,
        f"{tally.ANY_MOMENTA}MET": 100,
        f"{tally.LARGE_MOMENTA}MET": 100,
        tally.TAGGED_JETS: 0,
        tally.UNTAGGED_JETS: 100,
        tally.OTHER_CHARGES: 7,
        f"{tally.LIKE_AZIMUTHS}jets": 9,
        "rejected_nonfinite": 1,
        f"{tally.NOT_FINITE}Jet.PT": 1,
    }

    by_config = list(unusual_content({"a": counts}))
    notes = content_notes([counts])

    assert any(ADVISED_KEY.search(note) for note in by_config)
    text = " ".join(notes)
    assert text.count("The model decides how files are read") == 1
    assert not ADVISED_KEY.search(text), text
    assert len(notes) == len(by_config) + 1 == 6
    assert content_notes([{"events": 100}]) == []
