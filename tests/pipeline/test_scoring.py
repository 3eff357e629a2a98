"""The files that a classifier scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delphes_files import PARTICLE_BRANCHES, write_delphes
from event_rows import event_row

from features.settings import FeatureSettings
from ingestion.errors import ConflictingFilesError
from ingestion.reader import read_events
from models.prediction import Candidate
from pipeline.runs.trained_models import FoundModel
from pipeline.scoring import EventClassifier


def classifier(**reading: Any) -> EventClassifier:
    """A classifier whose model is never asked; `reading` changes how its events were read."""
    network: Any = None
    definitions = FeatureSettings(particles=False).model_dump(mode="json")
    reading = {"min_lepton_pt": 25.0, **reading}
    found = FoundModel(Candidate("hlf", network), ["QCD", "ttbar"], definitions, None, reading)
    return EventClassifier.from_model(found)


def test_files_of_another_kind_than_those_of_the_training_are_not_scored(tmp_path: Path) -> None:
    full = write_delphes(tmp_path / "full.root", [event_row()])
    bare = write_delphes(tmp_path / "bare.root", [event_row()], without=PARTICLE_BRANCHES)
    said: list[str] = []

    for of_training, other in ((full, bare), (bare, full)):
        model = classifier(has_particles=of_training == full)
        settings, infos = model.files([str(of_training)], said.append)
        assert [info.path for info in infos] == [str(of_training)]
        assert settings.min_lepton_pt == 25.0
        with pytest.raises(ConflictingFilesError, match=other.name):
            model.files([str(other)], said.append)
    earlier_release = classifier()
    for path in (full, bare):
        assert earlier_release.files([str(path)], said.append)[1]


def test_branches_of_any_name_are_kept(tmp_path: Path) -> None:
    more = {"weight_mc": np.array([0.5]), "met": np.array([np.nan])}
    path = write_delphes(tmp_path / "a.root", [event_row()], without=PARTICLE_BRANCHES, more=more)

    settings, infos = classifier().files([str(path)], str, keep=["weight_mc", "met"])

    (raw,) = read_events(infos[0], settings, start=0, stop=1)
    assert raw.pass_through["weight_mc"].tolist() == [0.5]
    assert np.isnan(raw.pass_through["met"]).all()
    assert raw.scalars["met"].tolist() == [50.0]
