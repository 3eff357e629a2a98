"""Rollback to the previous model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import SAMPLES, small_config
from rich.console import Console
from trained_nights import TrainedNights

from pipeline.commands.promote import promote
from pipeline.commands.rollback import rollback
from pipeline.config import load_config
from pipeline.errors import ConfigError, MissingInputError
from pipeline.run_folder import RunFolder


@pytest.fixture
def nights(tmp_path: Path) -> TrainedNights:
    return TrainedNights(tmp_path)


def test_a_rollback_brings_the_one_before_back_and_keeps_it(nights: TrainedNights) -> None:
    nights.train(5)
    nights.promote()
    nights.train(200)
    nights.promote()
    withdrawn, current = rollback(nights.run_folder, "hlf")
    assert (withdrawn[:4], current[:4]) == ("0002", "0001")
    assert nights.registry.current().name == current  # type: ignore[union-attr]
    # The next night finds the same candidate, and leaves it.
    assert nights.promote() == (False, "it was rolled back; --force promotes it anyway")
    with pytest.raises(MissingInputError, match="nothing to roll back to"):
        rollback(nights.run_folder, "hlf")
    assert nights.promote(force=True)[0]
    assert nights.in_use() == nights.made["train"]


def test_a_rollback_after_a_repair_put_the_damaged_files_in_use(nights: TrainedNights) -> None:
    nights.train(5)
    nights.promote()
    nights.train(200)
    nights.promote()
    weights = nights.registry.current().folder / "model" / "weights.pt"  # type: ignore[union-attr]
    weights.write_bytes(b"")
    assert nights.promote()[0]
    withdrawn, current = rollback(nights.run_folder, "hlf")
    assert (withdrawn[:4], current[:4]) == ("0003", "0001")
    # Nor does the damaged version of the withdrawn model come back without a pointer.
    nights.registry.pointer.unlink()
    assert nights.promote() == (False, "it was rolled back; --force promotes it anyway")
    assert nights.registry.current().name == current  # type: ignore[union-attr]
    with pytest.raises(MissingInputError, match="nothing to roll back to"):
        rollback(nights.run_folder, "hlf")


def test_there_is_nothing_to_roll_back_to_at_first(nights: TrainedNights) -> None:
    nights.train(5)
    nights.promote()
    with pytest.raises(MissingInputError, match="no previous model of"):
        rollback(nights.run_folder, "hlf")
    with pytest.raises(MissingInputError, match="nothing to roll back to"):
        rollback(nights.run_folder, "particles")


def test_only_networks_can_be_rolled_back(nights: TrainedNights) -> None:
    # A path led to the pointers of stages.
    nights.train(5)
    nights.promote()
    for name, near in (("../train", ""), ("hfl", "Did you mean 'hlf'")):
        with pytest.raises(ConfigError, match=f"no network '{name}'.*{near}"):
            rollback(nights.run_folder, name)


@pytest.mark.parametrize("command", [lambda each: rollback(each, "hlf"), lambda each: list(promote(each))])
def test_where_there_is_no_run_folder_none_is_left(tmp_path: Path, command: Callable[[RunFolder], object]) -> None:
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))
    with pytest.raises(MissingInputError):
        command(run_folder)
    assert not run_folder.config.run_dir.exists()
