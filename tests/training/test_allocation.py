"""The number of workers that an allocation holds."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from hep_core.allocation import MIB, CoreLimit, MemoryLimit, core_limit, memory_limit
from training.allocation import workers_in_allocation
from training.settings import TrainSettings


@pytest.mark.parametrize(
    ("cores", "memory_mib", "workers"),
    [(8, 64_000, 8), (8, 1_431, 3), (8, 1_432, 4), (0.5, 64_000, 1), (8, 100, 1)],
)
def test_workers_fit_into_cores_and_memory(cores: float, memory_mib: int, workers: int) -> None:
    memory = MemoryLimit(memory_mib * MIB, "a job")

    assert workers_in_allocation(CoreLimit(cores, "a job"), memory) == workers


def test_auto_is_the_number_of_workers_of_this_process() -> None:
    settings = TrainSettings.model_validate({"workers": "auto"})

    assert settings.workers == workers_in_allocation(core_limit(), memory_limit())
    assert settings.workers_in_config == "auto"


def test_copies_of_settings_know_auto_and_their_json_has_the_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("training.allocation.workers_in_allocation", lambda *_: 3)
    settings = TrainSettings.model_validate({"workers": "auto"})
    changed = settings.model_copy(update={"seed": 7})
    merged = TrainSettings.model_validate(settings.model_dump() | {"epochs": 2})

    assert (changed.workers, changed.workers_in_config) == (3, "auto")
    assert (merged.workers, merged.workers_in_config) == (3, "auto")
    assert json.loads(settings.model_dump_json())["workers"] == 3
    # Ranks read the settings as JSON, on a host that may be another one.
    assert TrainSettings(workers=settings.model_dump(mode="json")["workers"]).workers == 3


@pytest.mark.parametrize("workers", [0, -1, "many"])
def test_workers_are_auto_or_a_number_from_one(workers: object) -> None:
    with pytest.raises(ValidationError, match="workers"):
        TrainSettings.model_validate({"workers": workers})
