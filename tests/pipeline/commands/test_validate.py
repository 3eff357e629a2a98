"""Checks of `validate` before it opens files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from minimal_configs import MINIMAL
from rich.console import Console

from pipeline.commands.validate import validate
from pipeline.config import Config
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
