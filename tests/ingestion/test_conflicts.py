"""Files that do not fit those of a training."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
import uproot
from delphes_files import (
    PARTICLE_BRANCHES,
    checked_files,
    columns_of,
    kinds_of,
    source_of,
    write_delphes,
)
from event_rows import event_row

from ingestion.conflicts import check_particles_of_training
from ingestion.errors import ConflictingFilesError
from ingestion.file_info import FileInfo, have_particles
from ingestion.files import inventory
from ingestion.settings import IngestSettings


def checked(folder: Path, name: str, *, num_events: int = 2, particles: bool) -> list[FileInfo]:
    without = () if particles else PARTICLE_BRANCHES
    events = [event_row()] * num_events
    path = write_delphes(folder / f"{name}.root", events, without=without)
    return checked_files(path, needs_particles=False)


@pytest.mark.parametrize(
    ("particles", "message"), [(False, "has no tracks"), (True, "has tracks.* have none")]
)
def test_files_of_another_kind_than_those_of_the_training_are_refused(
    tmp_path: Path, particles: bool, message: str
) -> None:
    infos = checked(tmp_path, "new", particles=particles)

    check_particles_of_training(infos, {"has_particles": particles})
    with pytest.raises(ConflictingFilesError, match=rf"new\.root {message}"):
        check_particles_of_training(infos, {"has_particles": not particles})


def test_a_training_of_an_earlier_release_takes_both_kinds(tmp_path: Path) -> None:
    for particles in (True, False):
        infos = checked(tmp_path, f"{particles}", particles=particles)
        check_particles_of_training(infos, {"tree": "Delphes"})


def test_a_file_without_entries_lacks_nothing(tmp_path: Path) -> None:
    empty = checked(tmp_path, "empty", num_events=0, particles=False)
    full = checked(tmp_path, "full", particles=True)

    check_particles_of_training(empty, {"has_particles": True})
    assert have_particles(empty) is None
    assert have_particles([*empty, *full]) is True
    assert have_particles(checked(tmp_path, "bare", particles=False)) is False


def test_two_trees_of_files_of_one_uuid_are_four_files(tmp_path: Path) -> None:
    sources = []
    for name in ("first", "second"):
        path = tmp_path / f"{name}.root"
        with uproot.recreate(path, uuid_function=lambda: UUID(int=7)) as file:
            for tree in ("nominal", "shifted"):
                columns = columns_of([event_row(met=float(len(name + tree)))])
                file.mktree(tree, kinds_of(columns)).extend(columns)
                sources.append(source_of(tree, 0, str(path), tree=tree))

    infos = inventory(sources, IngestSettings()).infos

    assert len({info.uuid for info in infos}) == 4
