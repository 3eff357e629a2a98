"""A run that is taken up from a checkpoint gives the same numbers, to the last bit, as one that was never interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated import METHODS, ROUGH, AllCheckpoints, checkpoint_at, models, run, settings, toy_rows

WORKERS = 3
#: Steps of an epoch: 120 rows for 3 workers, in batches of 4.
STEPS = 10
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
    "momentum": {"optimizer": "sgd", "momentum": 0.8, "weight_decay": 1e-3},
}
SLOWMO: dict[str, dict[str, Any]] = {
    "plain": {},
    "slowmo": {"slowmo": {"tau": 4, "beta": 0.5}},
    "exact slowmo": {"slowmo": {"tau": 4, "beta": 0.5, "exact_average": True}},
}
#: Of the record of the epoch that was interrupted: these count from where the run was taken up.
SINCE_TAKEN_UP = {
    "averages_begun", "averages_received", "averages_skipped", "bytes_sent", "exchange_seconds", "mixed_reads",
    "seconds", "seconds_by_kind", "staleness", "wait_seconds",
}  # fmt: skip


def chosen_for(method: str, optimizer: str, slowmo: str) -> dict[str, Any]:
    momentum = {"optimizer_state": "average"} if slowmo == "exact slowmo" and optimizer == "adam" else {}
    return METHODS[method] | OPTIMIZERS[optimizer] | SLOWMO[slowmo] | momentum


def training(out: Path, *, resume_at: tuple[int, int] | None = None, from_run: Path | None = None, **chosen: Any) -> Any:
    """Two epochs with a checkpoint after six steps of each."""
    out.mkdir()
    workers = chosen.pop("workers", WORKERS)
    return run(
        train=toy_rows(120, groups=6),
        cluster=chosen.pop("cluster", ROUGH),
        workers=workers,
        batch_size=4,
        checkpoint_steps=6,
        files=lambda rank: AllCheckpoints(out, rank, workers),
        resume=checkpoint_at(from_run, resume_at) if from_run and resume_at else None,
        **chosen,
    )


@pytest.mark.parametrize("slowmo", SLOWMO)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_on_from_a_checkpoint_bit_by_bit(
    method: str, optimizer: str, slowmo: str, tmp_path: Path
) -> None:
    chosen = chosen_for(method, optimizer, slowmo)
    whole = training(tmp_path / "whole", **chosen)
    for name, position in (("within", (0, 6)), ("between", (1, 0)), ("late", (1, 6))):
        resumed = training(tmp_path / name, from_run=tmp_path / "whole", resume_at=position, **chosen)
        np.testing.assert_array_equal(models(resumed), models(whole), err_msg=f"taken up {name} epochs")
        for found, expected in zip(resumed.records, whole.records, strict=True):
            for epoch in range(2):
                left_out = SINCE_TAKEN_UP if epoch == position[0] else {"seconds", "seconds_by_kind", "wait_seconds", "exchange_seconds"}
                for key in expected[epoch].keys() - left_out:
                    assert found[epoch][key] == expected[epoch][key], (name, epoch, key)
