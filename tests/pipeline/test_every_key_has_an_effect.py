"""Each key of the config has an effect: another value makes an output stale or is refused."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

import pytest
from minimal_configs import MINIMAL
from pydantic import BaseModel, ValidationError

from models.networks.registry import NETWORKS
from pipeline.config import Config
from pipeline.stages.table import STAGES

#: A config in which much is in use.
BASE = {
    **MINIMAL,
    "model": {"names": list(NETWORKS)},
    "simulate": {"processes": [{"name": "qcd"}]},
    "export": {"hls4ml": True},
    "evaluate": {"signal": MINIMAL["classes"][0]},
    "features": {"ordering": "file"},
    "train": {"optimizer": "sgd"},
}
#: Values for keys whose type does not say one.
VALUES: dict[str, Any] = {
    "features.split": {"train": 0.5, "val": 0.3},
    "evaluate.signal": MINIMAL["classes"][1],
    "evaluate.background_working_points": [0.001],
    "evaluate.data": ["data.root"],
    "gridsearch.depths": [1],
    "gridsearch.epochs": [30],
    "gridsearch.learning_rate": [0.1],
    "gridsearch.num_trials": 3,
    "ingest.branch_map": {"met": "MET_pt"},
    "ingest.pass_through": ["Event.Number"],
    "ingest.min_btag": 0.5,
    "ingest.weights": {"up": "Weight[1]"},
    "model.deepsets.hidden": [3],
    "model.transformer.heads": 2,
    "model.transformer.width": 64,
    "simulate.processes": [{"name": "ttbar"}],
    "train.algorithm": "local-sgd",
    "notify": ["/bin/true"],
    "plugins": ["own"],
    "storage": "s3://bucket/night",
    "train.decorrelate": {"from": ["met"], "strength": 1, "classes": MINIMAL["classes"][:1]},
    "train.launcher_args": ["-x", "A"],
    "train.schedule.milestones": [3],
    "train.skew": {},
    "train.slowmo": {},
    "train_by_network": {"hlf": {"epochs": 3}},
}
#: Where a run lies and runs, how fast it is, and when it ends: no output changes.
WITHOUT_OUTPUT = {
    *("notify", "plugins", "run_dir", "storage"),
    *("ingest.on_bad_file", "ingest.settle_seconds", "ingest.until", "ingest.entries_per_task"),
    *("train.threads", "train.reader", "train.checkpoint_steps", "train.max_restarts"),
    *("train.stall_seconds", "train.tensorboard", "train.launcher", "train.launcher_args"),
}
#: Sections that no stage reads whole: lists of names and files, and those of other commands.
NOT_OF_STAGES = {"classes", "samples", "compare", "promote", "mlflow", "spark"}


class Setting(NamedTuple):
    """A key of the config with its value and its type."""

    key: str
    value: Any
    type_: Any


def all_settings(section: BaseModel, prefix: str = "") -> Iterator[Setting]:
    """The settings of a section and of the sections inside it."""
    for name, field in type(section).model_fields.items():
        key, value = f"{prefix}{name}", getattr(section, name)
        if isinstance(value, BaseModel) and key not in WITHOUT_OUTPUT | VALUES.keys():
            yield from all_settings(value, f"{key}.")
        else:
            yield Setting(key, value, field.annotation)


SETTINGS = [
    setting
    for setting in all_settings(Config.model_validate(BASE))
    if setting.key.split(".")[0] not in NOT_OF_STAGES
]


def candidates(setting: Setting) -> list[Any]:
    """Values that may be valid for a setting."""
    value = setting.value
    values: list[Any] = []
    if setting.key in VALUES:
        values.append(VALUES[setting.key])
    elif isinstance(value, bool):
        values.append(not value)
    elif isinstance(value, Enum):
        values += [member.value for member in type(value) if member is not value]
    elif isinstance(value, int | float):
        values += [value + 1, value * 0.9]
    elif isinstance(value, list):
        values.append(value[:-1])
    for argument in typing.get_args(setting.type_):
        # Names of a `Literal`, also inside a union, or all members of an enumeration.
        values += [name for name in typing.get_args(argument) if isinstance(name, str)]
        if isinstance(argument, str):
            values.append(argument)
        elif isinstance(argument, type) and issubclass(argument, Enum):
            values += [member.value for member in argument]
    values += [7, 0.05, "zzz"]
    return [candidate for candidate in values if candidate != value]


def result_items(config: Config) -> list[Any]:
    """The keys that all stages and their parts depend on."""
    items: list[Any] = [stage.config_items(config) for stage in STAGES]
    for stage in STAGES:
        items += [(name, part.config_items) for name, part in stage.parts(config).items()]
    return items


def with_value(key: str, value: Any) -> Config:
    """The config with another value of a key."""
    base = Config.model_validate(BASE)
    document: dict[str, Any] = base.model_dump(mode="json", exclude_unset=True)
    *section_names, name = key.split(".")
    section = document
    for section_name in section_names:
        section = section.setdefault(section_name, {})
    section[name] = value
    return Config.model_validate(document)


@pytest.mark.parametrize("setting", SETTINGS, ids=[setting.key for setting in SETTINGS])
def test_another_value_makes_an_output_stale_or_is_refused(setting: Setting) -> None:
    items = result_items(Config.model_validate(BASE))
    refusals = []
    for value in candidates(setting):
        try:
            changed = with_value(setting.key, value)
        except ValidationError as error:
            refusals.append(str(error))
            continue

        is_stale = result_items(changed) != items
        assert is_stale is (setting.key not in WITHOUT_OUTPUT)
        return
    assert any("has no effect" in message or " needs " in message for message in refusals), refusals
