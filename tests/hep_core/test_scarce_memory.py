"""What processes do where memory is scarce."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hep_core import scarce_memory
from hep_core.allocation import MIB, MemoryLimit
from hep_core.scarce_memory import is_memory_scarce, prefer_to_kill, return_freed_memory


@pytest.mark.parametrize(("limit_mib", "is_scarce"), [(600, True), (1535, True), (1536, False)])
def test_memory_is_scarce_below_a_limit(limit_mib: int, is_scarce: bool) -> None:
    assert is_memory_scarce(MemoryLimit(limit_mib * MIB, "a job")) is is_scarce


def test_malloc_gets_parameters_only_where_memory_is_scarce(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # This process keeps its own malloc.
    monkeypatch.setattr(scarce_memory, "_PARAMETERS", {})
    environment_by_limit: dict[int, dict[str, str]] = {}

    for limit_mib in (600, 4000):
        limit = MemoryLimit(limit_mib * MIB, "a job")
        monkeypatch.setattr(scarce_memory, "memory_limit", lambda limit=limit: limit)
        environment_by_limit[limit_mib] = {"MALLOC_ARENA_MAX": "3"}
        return_freed_memory(environment_by_limit[limit_mib])

    assert environment_by_limit[4000] == {"MALLOC_ARENA_MAX": "3"}
    assert environment_by_limit[600].keys() == scarce_memory._VARIABLES.keys()
    # What the user has set stays.
    assert environment_by_limit[600]["MALLOC_ARENA_MAX"] == "3"


def test_the_kernel_kills_a_child_rather_than_this_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        prefer_to_kill(child.pid)
        score = Path(f"/proc/{child.pid}/oom_score_adj").read_text()
        child.kill()

    assert int(score) == 500
    prefer_to_kill(child.pid)
