"""A run that is taken up from a checkpoint gives the same numbers, to the last bit, as one that was never interrupted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import CLUSTER, METHODS, ROUGH, KeptCheckpoints, models, run, toy_rows

from training.simulation.simulate import Simulated

#: Steps of an epoch: 120 rows for 3 workers, in batches of 4.
STEPS = 10
WITHIN, BETWEEN = (0, 6), (1, 0)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
    "momentum": {"optimizer": "sgd", "momentum": 0.8, "weight_decay": 1e-3},
}
SLOWMO: dict[str, dict[str, Any]] = {
    "plain": {},
    "slowmo": {"slowmo": {"tau": 4, "beta": 0.5}},
    "exact slowmo": {"slowmo": {"tau": 4, "beta": 0.5, "exact_average": True}, "optimizer_state": "average"},
}
CASES = [(method, "adam", slowmo) for method in METHODS for slowmo in SLOWMO]
CASES += [(method, "momentum", "slowmo") for method in ("ar-sgd", "local-sgd", "d-psgd", "ad-psgd", "swarm-sgd")]
#: Virtual times and what is metered; they count from where the run was taken up.
METERED = {"bytes_sent", "exchange_seconds", "seconds", "seconds_by_kind", "wait_seconds"}
COUNTED = {"averages_begun", "averages_received", "averages_skipped", "mixed_reads", "staleness"}


def training(kept: KeptCheckpoints, resume: Any = None, **chosen: Any) -> Simulated:
    """Two epochs with a checkpoint after six steps of each."""
    defaults = {
        "workers": 3,
        "batch_size": 4,
        "checkpoint_steps": 6,
        "cluster": ROUGH,
        "train": toy_rows(120, groups=6),
    }
    return run(files=kept.files, resume=resume, **(defaults | chosen))


def assert_same(found: Simulated, expected: Simulated, taken_up: tuple[int, int]) -> None:
    np.testing.assert_array_equal(models(found), models(expected), err_msg=f"taken up at {taken_up}")
    for others, records in zip(found.records, expected.records, strict=True):
        for other, record in zip(others, records, strict=True):
            left_out = METERED | COUNTED if (record["epoch"], 0) < taken_up < (record["epoch"] + 1, 0) else METERED
            for key in record.keys() - left_out:
                assert other[key] == record[key], (taken_up, record["epoch"], key)


@pytest.mark.parametrize(("method", "optimizer", "slowmo"), CASES)
def test_every_method_goes_on_from_a_checkpoint_bit_by_bit(method: str, optimizer: str, slowmo: str) -> None:
    chosen = METHODS[method] | OPTIMIZERS[optimizer] | SLOWMO[slowmo]
    kept = KeptCheckpoints()
    whole = training(kept, **chosen)
    assert sorted(kept.content) == [(0, 6), (1, 0), (1, 6), (2, 0)]
    for position in (WITHIN, BETWEEN):
        assert_same(training(KeptCheckpoints(), kept.at(position), **chosen), whole, position)
