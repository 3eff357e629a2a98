"""Checks of `validate`: settings, and the files of samples and data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import SAMPLES, small_config
from delphes_files import PARTICLE_BRANCHES, write_delphes
from minimal_configs import MINIMAL
from night_files import events
from rich.console import Console

from hep_core.input_errors import InputFileError
from ingestion.errors import (
    ConflictingFilesError,
    EmptySampleError,
    MissingBranchError,
    MissingTreeError,
    NoFilesError,
)
from pipeline.commands.validate import validate
from pipeline.config import Config, load_config
from training.errors import IdleSettingError, NoMatrixError


def output_of(**settings: Any) -> Iterator[str]:
    """The lines of `validate` for a minimal config with these settings."""
    return validate(Config.model_validate({**MINIMAL, **settings}), Console(quiet=True))


@pytest.mark.parametrize(
    "settings",
    [
        {"train_by_network": {"particles": {"epochs": 3}}},
        {"model": {"particles": {"gru_width": 3}}},
    ],
    ids=str,
)
def test_settings_of_a_network_that_is_not_trained_are_noted(settings: dict[str, Any]) -> None:
    note = "note: what is set for particles has no effect, since model.names has no particles"
    assert next(output_of(**settings)) == note


def test_a_missing_program_of_notify_is_noted() -> None:
    note = "note: notify: there is no program 'no-such-mailer'"
    assert next(output_of(notify=["no-such-mailer"])) == note


@pytest.mark.parametrize(
    ("from_gridsearch", "train", "key"),
    [
        (False, {"algorithm": "ad-psgd"}, "train.algorithm: ad-psgd"),
        (True, {"skew": {}}, "train.skew"),
    ],
)
def test_settings_of_several_workers_are_refused_for_one(
    from_gridsearch: bool, train: dict[str, Any], key: str
) -> None:
    model = {"hlf": {"from_gridsearch": from_gridsearch}}

    message = f"hlf: {key} has no effect: it needs at least 2 workers"
    with pytest.raises(IdleSettingError, match=message):
        list(output_of(train=train, model=model))


def test_muon_is_refused_for_a_network_without_matrices() -> None:
    model = {"hlf": {"hidden": [1]}}

    with pytest.raises(NoMatrixError, match=r"hlf: .*muon .* are 1 x 14, .*Use adamw"):
        list(output_of(train={"optimizer": "muon"}, model=model))


@pytest.mark.parametrize("depths", [[1], [1, 2]], ids=str)
def test_muon_is_refused_for_a_candidate_without_matrices(depths: list[int]) -> None:
    settings: dict[str, Any] = {
        "train": {"optimizer": "muon"},
        "model": {"hlf": {"from_gridsearch": True}},
        "gridsearch": {"hidden": [[4, 1], [1]], "depths": depths},
    }

    message = r"hlf with the widths \[1\] of gridsearch.hidden: .*muon .*, or leave out these"
    with pytest.raises(NoMatrixError, match=message):
        list(output_of(**settings))


def test_muon_is_accepted_if_all_candidates_have_matrices() -> None:
    settings: dict[str, Any] = {
        "train": {"optimizer": "muon"},
        # The network's own widths do not count.
        "model": {"hlf": {"hidden": [1], "from_gridsearch": True}},
        "gridsearch": {"hidden": [[4, 2], [1]], "depths": [1, 2]},
    }

    lines = output_of(**settings, notify=["no-such-mailer"])

    assert next(lines).startswith("note: notify")


@pytest.mark.parametrize("from_gridsearch", [False, True])
def test_more_fragments_than_parameters_are_refused(*, from_gridsearch: bool) -> None:
    method = {"name": "streaming-diloco", "fragments": 22, "local_steps": 30}
    settings: dict[str, Any] = {
        "train": {"algorithm": method, "workers": 2},
        "model": {"hlf": {"hidden": [1], "from_gridsearch": from_gridsearch}},
        "gridsearch": {"hidden": [[4, 1]]},
    }

    message = r"hlf.*: train.algorithm.fragments: 22 needs .* at least 22 .* has 21. Lower it"
    with pytest.raises(IdleSettingError, match=message):
        list(output_of(**settings))


def test_muon_is_accepted_for_all_networks_of_the_package() -> None:
    names = ["hlf", "particles", "inclusive", "deepsets", "transformer"]
    lines = output_of(
        train={"optimizer": "muon"}, model={"names": names}, notify=["no-such-mailer"]
    )

    assert next(lines).startswith("note: notify")


def lines_with_data(folder: Path, pattern: str, **settings: Any) -> list[str]:
    """The lines of `validate` for the bundled samples beside these data."""
    data = {"evaluate": {"data": [str(folder / pattern)]}}
    config = load_config(str(small_config(folder, SAMPLES, **data, **settings)))
    return list(validate(config, Console(quiet=True)))


def test_the_data_are_counted_beside_the_samples(tmp_path: Path) -> None:
    write_delphes(tmp_path / "data_1.root", events(500, 8))
    write_delphes(tmp_path / "data_2.root", events(600, 4))

    lines = lines_with_data(tmp_path, "data_*.root")

    assert lines[-3] == "evaluate.data: 2 files, 12 entries"
    assert lines[-1] == "the config is valid"


def test_without_data_no_line_names_them(tmp_path: Path) -> None:
    config = load_config(str(small_config(tmp_path, SAMPLES)))

    lines = list(validate(config, Console(quiet=True)))

    assert not [line for line in lines if "data" in line.partition(":")[0]]


def test_data_files_of_a_mistyped_pattern_are_missing(tmp_path: Path) -> None:
    write_delphes(tmp_path / "data.root", events(500, 8))

    with pytest.raises(NoFilesError, match=r"no file matches .*dota.*data\.root"):
        lines_with_data(tmp_path, "dota.root")


def test_data_files_without_the_tree_are_refused(tmp_path: Path) -> None:
    write_delphes(tmp_path / "data.root", events(500, 8), tree="Events")

    with pytest.raises(MissingTreeError, match=r"data\.root"):
        lines_with_data(tmp_path, "data.root")


def test_data_files_without_a_needed_branch_are_refused(tmp_path: Path) -> None:
    write_delphes(tmp_path / "data.root", events(500, 8), without=["MissingET.MET"])

    with pytest.raises(MissingBranchError, match=r"data\.root"):
        lines_with_data(tmp_path, "data.root")


def test_a_bad_data_file_is_refused_where_those_of_samples_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "data.root").write_bytes(b"root" + bytes(200))

    with pytest.raises(InputFileError, match=r"data\.root"):
        lines_with_data(tmp_path, "data.root", ingest={"on_bad_file": "skip"})


def test_data_without_entries_are_refused(tmp_path: Path) -> None:
    write_delphes(tmp_path / "data.root", [])

    with pytest.raises(EmptySampleError, match=r"evaluate\.data: its files hold no entries"):
        lines_with_data(tmp_path, "data.root")


def test_data_without_the_particles_of_the_samples_are_refused(tmp_path: Path) -> None:
    write_delphes(tmp_path / "data.root", events(500, 8), without=PARTICLE_BRANCHES)

    with pytest.raises(ConflictingFilesError, match=r"data\.root has no tracks"):
        lines_with_data(tmp_path, "data.root", features={"particles": False})
