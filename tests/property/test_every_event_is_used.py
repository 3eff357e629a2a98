"""An epoch uses every event once, for any workers, row groups, batches and methods."""

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


def run_and_count(**options: Any) -> tuple[Counter[int], Simulated]:
    """How often a run used each event, and the run."""
    uses: Counter[int] = Counter()
    gradient = BatchedGradients.gradient

    def counting_gradient(self: BatchedGradients, rank: int, rows: Any, seconds: float) -> Any:
        uses.update(rows.tolist())
        return gradient(self, rank, rows, seconds)

    with mock.patch.object(BatchedGradients, "gradient", counting_gradient):
        return uses, run(**options)


@settings(max_examples=50)
@given(
    row_groups, st.integers(1, 9), st.integers(1, 12), methods, st.sampled_from([None, "static"])
)
def test_an_epoch_of_any_workers_and_row_groups_uses_every_event_once(
    rows: list[int], workers: int, batch_size: int, method: str, sharding: str | None
) -> None:
    num_events = sum(rows)
    options = PARALLEL_METHODS[method] | {
        "workers": min(workers, num_events),
        "batch_size": batch_size,
        "sharding": sharding,
    }

    uses, simulated = run_and_count(
        train=replace(toy_rows(num_events), group_rows=rows), cluster=UNEVEN_CLUSTER, **options
    )

    assert uses == dict.fromkeys(range(num_events), 2)
    # Workers without events take part in the steps of the others.
    assert np.isfinite(models(simulated)).all()
    for rank_records in simulated.records:
        for record in rank_records:
            assert record["samples_all_ranks"] == record["train_rows"] == num_events


@pytest.mark.parametrize(
    "method", ["ar-sgd", "local-sgd", "ad-psgd", "mpca", "agn", "sharded sparse beside"]
)
@pytest.mark.parametrize("worker_counts", [(3, 2), (2, 5), (4, 4), (4, 3, 5)], ids=str)
def test_other_numbers_of_workers_continue_an_epoch(
    method: str, worker_counts: tuple[int, ...]
) -> None:
    rows = replace(toy_rows(101), group_rows=[40, 1, 37, 23])
    uses: Counter[int] = Counter()
    resume = None
    for index, workers in enumerate(worker_counts, 1):
        checkpoints = MemoryCheckpoints()
        options = {
            **PARALLEL_METHODS[method],
            "workers": workers,
            "batch_size": 4,
            "epochs": 1,
            "cluster": CLUSTER,
        }
        uses_in_run, simulated = run_and_count(
            train=rows, checkpoint_steps=2, resume=resume, files=checkpoints.files, **options
        )
        uses += uses_in_run
        if index < len(worker_counts):
            # The next workers repeat the steps after the checkpoint.
            resume = checkpoints.at(min(checkpoints.content))
            repeated_uses, _ = run_and_count(train=rows, resume=resume, **options)
            uses -= repeated_uses

    assert uses == dict.fromkeys(range(101), 1)
    (samples,) = {records[0]["samples_all_ranks"] for records in simulated.records}
    assert samples == 101
