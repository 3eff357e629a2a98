"""What `validate` finds before it opens files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from feature_datasets import write_dataset
from minimal_configs import MINIMAL
from rich.console import Console

from pipeline.commands.validate import validate
from pipeline.config import Config
from training.errors import IdleSettingError


@pytest.mark.parametrize(
    "chosen", [{"train_by_network": {"particles": {"epochs": 3}}}, {"model": {"particles": {"gru_width": 3}}}], ids=str
)
def test_a_network_that_is_not_trained_is_named_where_something_is_set_for_it(chosen: dict[str, Any]) -> None:
    said = validate(Config.model_validate({**MINIMAL, **chosen}), Console(quiet=True))
    assert next(said) == "note: what is set for particles has no effect, since model.names has no particles"


def test_a_program_of_notify_that_is_not_there_was_valid() -> None:
    said = validate(Config.model_validate({**MINIMAL, "notify": ["no-such-mailer"]}), Console(quiet=True))
    assert next(said) == "note: notify: there is no program 'no-such-mailer'"


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
