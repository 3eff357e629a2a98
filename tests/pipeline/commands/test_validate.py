"""What `validate` finds before it opens files."""

from __future__ import annotations

from typing import Any

import pytest
from minimal_configs import MINIMAL
from rich.console import Console

from pipeline.commands.validate import validate
from pipeline.config import Config
from training.errors import IdleSettingError


@pytest.mark.parametrize(
    "settings",
    [
        {"train_by_network": {"particles": {"epochs": 3}}},
        {"model": {"particles": {"gru_width": 3}}},
    ],
    ids=str,
)
def test_a_network_that_is_not_trained_is_named_where_something_is_set_for_it(
    settings: dict[str, Any],
) -> None:
    output = validate(Config.model_validate({**MINIMAL, **settings}), Console(quiet=True))
    assert (
        next(output)
        == "note: what is set for particles has no effect, since model.names has no particles"
    )


def test_a_program_of_notify_that_is_not_there_was_valid() -> None:
    output = validate(
        Config.model_validate({**MINIMAL, "notify": ["no-such-mailer"]}), Console(quiet=True)
    )
    assert next(output) == "note: notify: there is no program 'no-such-mailer'"


@pytest.mark.parametrize(
    ("network_of_search", "train", "problem"),
    [
        (
            False,
            {"algorithm": "ad-psgd"},
            "hlf: train.algorithm: ad-psgd has no effect: it needs at least 2 workers",
        ),
        (True, {"skew": {}}, "hlf: train.skew has no effect: it needs at least 2 workers"),
    ],
)
def test_one_worker_is_refused_for_what_only_several_do(
    network_of_search: bool, train: dict[str, Any], problem: str
) -> None:
    settings = {**MINIMAL, "train": train, "model": {"hlf": {"from_gridsearch": network_of_search}}}
    with pytest.raises(IdleSettingError, match=problem):
        list(validate(Config.model_validate(settings), Console(quiet=True)))
