"""An epoch uses every event once: for any workers, row groups, batches and methods, through the trainer itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import (
    CLUSTER,
    PARALLEL_METHODS,
    UNEVEN_CLUSTER,
    MemoryCheckpoints,
    models,
    run,
    toy_rows,
)

from hep_studies.simulator.simulate import Simulated
from hep_studies.simulator.stacked import BatchedGradients

row_groups = st.lists(st.integers(1, 12), min_size=1, max_size=20)
methods = st.sampled_from(sorted(PARALLEL_METHODS))


def watched(**selected: Any) -> tuple[Counter[int], Simulated]:
    """How often a run used each event, and the run."""
    seen: Counter[int] = Counter()
    gradient = BatchedGradients.gradient

    def noted(self: BatchedGradients, rank: int, rows: Any, seconds: float) -> Any:
        seen.update(rows.tolist())
        return gradient(self, rank, rows, seconds)

    with mock.patch.object(BatchedGradients, "gradient", noted):
        return seen, run(**selected)


@settings(max_examples=50)
@given(
    row_groups, st.integers(1, 9), st.integers(1, 12), methods, st.sampled_from([None, "static"])
)
def test_an_epoch_of_any_workers_and_row_groups_left_events_out(
    rows: list[int], workers: int, batch_size: int, method: str, sharding: str | None
) -> None:
    train, workers = replace(toy_rows(sum(rows)), group_rows=rows), min(workers, sum(rows))
    selected = PARALLEL_METHODS[method] | {
        "workers": workers,
        "batch_size": batch_size,
        "sharding": sharding,
    }
    seen, simulated = watched(train=train, cluster=UNEVEN_CLUSTER, **selected)
    assert seen == dict.fromkeys(range(sum(rows)), 2)
    # Workers without events take part in the steps of the others.
    assert np.isfinite(models(simulated)).all()
    for records in zip(*simulated.records, strict=True):
        assert {(record["samples_all_ranks"], record["train_rows"]) for record in records} == {
            (sum(rows), sum(rows))
        }


@pytest.mark.parametrize(
    "method", ["ar-sgd", "local-sgd", "ad-psgd", "mpca", "agn", "sharded sparse beside"]
)
@pytest.mark.parametrize("numbers", [(3, 2), (2, 5), (4, 4), (4, 3, 5)], ids=str)
def test_an_epoch_that_another_number_of_workers_continued_began_again(
    method: str, numbers: tuple[int, ...]
) -> None:
    rows = replace(toy_rows(101), group_rows=[40, 1, 37, 23])
    seen: Counter[int] = Counter()
    resume = None
    for workers, following in zip(numbers, (*numbers[1:], 0), strict=True):
        memory_checkpoints = MemoryCheckpoints()
        selected = {
            **PARALLEL_METHODS[method],
            "workers": workers,
            "batch_size": 4,
            "epochs": 1,
            "cluster": CLUSTER,
        }
        complete, simulated = watched(
            train=rows,
            checkpoint_steps=2,
            resume=resume,
            files=memory_checkpoints.files,
            **selected,
        )
        seen += complete
        if not following:
            break
        # The part behind the last checkpoint within the epoch is done again by others.
        resume = memory_checkpoints.at(min(memory_checkpoints.content))
        behind, _ = watched(train=rows, resume=resume, **selected)
        seen -= behind
    assert seen == dict.fromkeys(range(101), 1)
    (samples,) = {records[0]["samples_all_ranks"] for records in simulated.records}
    assert samples == 101
