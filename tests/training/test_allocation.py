"""The number of workers that an allocation holds."""

from __future__ import annotations

import pytest

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
