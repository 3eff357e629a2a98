"""Ranks are killed, and the others continue (Open MPI's --with-ft ulfm)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rank_programs import GIVEN_UP, IMPLEMENTATIONS, Outcome, run_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400)]


def lose(ranks: int, folder: Path, **arguments: Any) -> Outcome:
    """Kill some of the ranks; repeat at most twice if Open MPI ended other ranks too."""
    for attempt in range(3):
        try:
            outcome = run_ranks(
                IMPLEMENTATIONS[0],
                ranks,
                "losses:lose",
                folder / f"{attempt}",
                options=("--with-ft", "ulfm"),
                seconds=90,
                **arguments,
            )
        except AssertionError as too_long:
            if GIVEN_UP not in str(too_long):
                raise
        else:
            if GIVEN_UP not in outcome.output:
                return outcome
    raise AssertionError(f"three times Open MPI ended ranks that were not killed: {GIVEN_UP}")


@pytest.mark.parametrize("doing", ["all_reduce", "broadcast", "barrier", "exchange"])
@pytest.mark.parametrize("victims", [[0, 2], [3, 0]], ids=str)
def test_survivors_of_calls_of_all_continue_together(tmp_path: Path, doing: str, victims: list[int]) -> None:
    outcome = lose(5, tmp_path, doing=doing, victims=victims)
    left = 5 - len(victims)
    # The file carries the rank in MPI's first world, which those that are left keep.
    assert len(outcome.results) == left, outcome.output
    assert outcome.status == 0
    assert victims[0] not in outcome.results
    assert sorted(result["rank"] for result in outcome.results.values()) == list(range(left))
    for result in outcome.results.values():
        assert result["world"] == result["sum"] == result["samples"] == left
        assert result["losses"] == ["error"] * len(victims)


@pytest.mark.parametrize("protocol", ["additive", "sockets"])
def test_averages_do_not_notice_but_can_ask(tmp_path: Path, protocol: str) -> None:
    # A rank that dies in the middle of an accumulation blocks the others, so this one dies between two averages.
    outcome = lose(4, tmp_path, doing="average", victims=[1], protocol=protocol)
    assert sorted(outcome.results) == [0, 2, 3], outcome.output
    assert {result["losses"][0] for result in outcome.results.values()} <= {"num_lost", "error"}
    assert all(result["world"] == result["samples"] == 3 for result in outcome.results.values())
    # Ranks 0 and 2 average with the lost one.
    counted = [outcome.results[rank]["averages_lost"] > 0 for rank in (0, 2, 3)]
    assert counted == ([True, True, False] if protocol == "sockets" else [False, False, False])
