"""What the stage `features` states about its dataset."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from delphes_files import PARTICLE_BRANCHES, checked_files, write_delphes
from event_rows import event_row
from minimal_configs import MINIMAL
from published_by_hand import example_version

from ingestion.settings import IngestSettings
from pipeline.config import Config
from pipeline.stages.features import _reading


@pytest.mark.parametrize("particles", [True, False])
def test_a_dataset_states_whether_its_files_have_particles(tmp_path: Path, particles: bool) -> None:
    without = () if particles else PARTICLE_BRANCHES
    path = write_delphes(tmp_path / "a.root", [event_row()], without=without)
    records = [info._asdict() for info in checked_files(path, needs_particles=False)]
    config = Config.model_validate(MINIMAL).model_dump(mode="json")
    ingested = example_version("ingest", tmp_path, config=config, inputs=records)
    context: Any = SimpleNamespace(upstream={"ingest": ingested})

    reading = _reading(context)

    assert reading.pop("has_particles") is particles
    assert IngestSettings.model_validate(reading).tree_name == "Delphes"
