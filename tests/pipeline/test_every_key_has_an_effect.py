"""Each key of the config has an effect: another value makes an output stale or is refused."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any

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
    "train.launcher_args": ["-x", "A"],
    "train.schedule.milestones": [3],
    "train.skew": {},
    "train.slowmo": {},
    "train_by_network": {"hlf": {"epochs": 3}},
}
#: Where a run lies and runs, how fast it is, and when it ends: no output changes.
OF_NO_OUTPUT = {
    *("notify", "plugins", "run_dir", "storage"),
    *(f"ingest.{key}" for key in ("on_bad_file", "settle_seconds", "until", "entries_per_task")),
    *(
        f"train.{key}"
        for key in (
            *("threads", "reader", "checkpoint_steps", "max_restarts", "stall_seconds"),
            *("tensorboard", "launcher", "launcher_args"),
        )
    ),
}


def leaves(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted key, value and type of every key."""
    for name, field in type(section).model_fields.items():
        key, value = f"{prefix}{name}", getattr(section, name)
        if isinstance(value, BaseModel) and key not in OF_NO_OUTPUT | VALUES.keys():
            yield from leaves(value, f"{key}.")
        else:
            yield key, value, field.annotation


#: Sections of commands that are no stages.
OF_COMMANDS = ("compare", "promote", "mlflow", "spark")
LEAVES = [
    leaf
    for leaf in leaves(Config.model_validate(BASE))
    if leaf[0].split(".")[0] not in ("classes", "samples", *OF_COMMANDS)
]


def others(key: str, value: Any, kind_name: Any) -> Iterator[Any]:
    """Other values."""
    if key in VALUES:
        yield VALUES[key]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, Enum):
        yield from (member.value for member in type(value) if member is not value)
    elif isinstance(value, int | float):
        yield from (value + 1, value * 0.9)
    elif isinstance(value, list):
        yield value[:-1]
    for argument in typing.get_args(kind_name):
        inner = typing.get_args(argument)
        yield from (
            argument
            for argument in (*inner, argument)
            if isinstance(argument, str) and argument != value
        )
        yield from (
            [name.value for name in argument]
            if isinstance(argument, type) and issubclass(argument, Enum)
            else []
        )
    yield from (7, 0.05, "zzz")


def items(config: Config) -> list[Any]:
    """The keys that all stages and their parts depend on."""
    chunks = [chunk for stage in STAGES for chunk in stage.parts(config).items()]
    return [stage.config_items(config) for stage in STAGES] + [
        (name, chunk.config_items) for name, chunk in chunks
    ]


def changed(key: str, value: Any) -> Config:
    """The config with another value."""
    complete: dict[str, Any] = Config.model_validate(BASE).model_dump(
        mode="json", exclude_unset=True
    )
    inner = complete
    *outer, last = key.split(".")
    for name in outer:
        inner = inner.setdefault(name, {})
    inner[last] = value
    return Config.model_validate(complete)


@pytest.mark.parametrize(("key", "value", "kind_name"), LEAVES, ids=[key for key, *_ in LEAVES])
def test_another_value_makes_an_output_stale_or_is_refused(
    key: str, value: Any, kind_name: Any
) -> None:
    refusals = []
    for second in (candidate for candidate in others(key, value, kind_name) if candidate != value):
        try:
            is_stale = items(changed(key, second)) != items(Config.model_validate(BASE))
        except ValidationError as refused:
            refusals.append(str(refused))
            continue
        assert is_stale is (key not in OF_NO_OUTPUT)
        return
    assert any("has no effect" in message or " needs " in message for message in refusals), refusals
