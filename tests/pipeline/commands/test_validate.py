"""What `validate` finds before it opens files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from feature_datasets import write_dataset
from minimal_configs import MINIMAL
from rich.console import Console

from ingestion.errors import IngestionError
from pipeline.commands.validate import validate
from pipeline.config import Config
from pipeline.errors import ConfigError
from training.errors import IdleSettingError


def validated(**compare: Any) -> None:
    list(validate(Config.model_validate({**MINIMAL, "compare": compare}), Console(quiet=True)))


@pytest.mark.parametrize(
    ("compare", "words"),
    [
        ({"seedz": 3}, r"compare of the config has 1 mistake:\n.*'seedz'. Did you mean 'seeds'"),
        ({"train": {"epoch": 3}}, r"compare\.train of the config.*\n.*'epoch'. Did you mean 'epochs'"),
        (
            {"train": {"algorithm": {"name": "easgd", "local_step": 3}}},
            "'algorithm.local_step'.*'local_steps'",
        ),
        ({"cluster": {"slow_rank": [1]}}, "'slow_rank'. Did you mean 'slow_ranks'"),
        ({"methods": {"easgd": {"train": {"epoch": 3}}}}, r"compare\.methods\.easgd\.train.*\n.*'epochs'"),
    ],
)
def test_an_unknown_key_of_a_study_was_valid_until_compare(compare: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validated(**compare)


@pytest.mark.parametrize(
    "chosen", [{"train_by_network": {"particles": {"epochs": 3}}}, {"model": {"particles": {"gru_width": 3}}}], ids=str
)
def test_a_network_that_is_not_trained_is_named_where_something_is_set_for_it(chosen: dict[str, Any]) -> None:
    said = validate(Config.model_validate({**MINIMAL, **chosen}), Console(quiet=True))
    assert next(said) == "note: what is set for particles has no effect, since model.names has no particles"


def test_a_program_of_notify_that_is_not_there_was_valid() -> None:
    said = validate(Config.model_validate({**MINIMAL, "notify": ["no-such-mailer"]}), Console(quiet=True))
    assert next(said) == "note: notify: there is no program 'no-such-mailer'"


def test_keys_of_studies_are_valid() -> None:
    # The files of this config do not exist.
    with pytest.raises(IngestionError, match="no file"):
        validated(seeds=3, minutes=1, train={"epochs": 5, "slowmo": {"tau": 3}}, cluster={"slow_ranks": {1: 2.0}})


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"algorithm": "ad-psgd"}, "hlf: ad-psgd averages no pairs: it needs at least 2 workers"),
        ({"slowmo": {"tau": 200}, "epochs": 1}, "train.slowmo.tau is 200, and a worker takes about 2 steps"),
    ],
    ids=str,
)
def test_a_training_whose_mechanism_never_acts_was_valid(tmp_path: Path, train: dict[str, Any], words: str) -> None:
    write_dataset(tmp_path, rows={"train": [64], "val": [16], "test": [16]})
    features = cast("Any", SimpleNamespace(folder=tmp_path))
    with pytest.raises(IdleSettingError, match=words):
        list(validate(Config.model_validate({**MINIMAL, "train": train}), Console(quiet=True), features=features))
