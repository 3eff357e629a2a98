"""The summary of a training in `summary.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulated import run, settings

from training.loop.records import write_records
from training.loop.summary import write_summary


@pytest.mark.parametrize(
    ("method", "is_exact"),
    [
        ({"algorithm": "ar-sgd"}, False),
        ({"algorithm": "ar-sgd", "slowmo": {"tau": 2}}, True),
        ({"algorithm": "d-psgd", "slowmo": {"tau": 2}}, False),
        ({"algorithm": "d-psgd", "slowmo": {"tau": 2, "exact_average": True}}, True),
    ],
    ids=str,
)
def test_a_summary_adds_up_epochs_and_names_the_average_of_slow_momentum(
    tmp_path: Path, method: dict[str, Any], is_exact: bool
) -> None:
    selected = method | {"workers": 4, "epochs": 3}
    histories = run(**selected).records
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    for rank, records in enumerate(histories):
        write_records(metrics / f"rank-{rank}.jsonl", records)

    write_summary(tmp_path, "hlf", settings(**selected), 51)

    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["slowmo_exact_average"] is is_exact
    # 320 events in batches of 10 for each of 4 workers.
    assert summary["steps"] == 3 * 8
    assert summary["samples"] == 3 * 320
    assert summary["train_rows"] == 320
    records_of_rank_0 = histories[0]
    seconds = sum(record["seconds"] for record in records_of_rank_0)
    assert summary["seconds"] == pytest.approx(seconds)
    best = min(records_of_rank_0, key=lambda record: record["val_loss"])
    assert summary["best_epoch"] == best["epoch"]
    assert summary["best_val_loss"] == best["val_loss"]
    rank_numbers = [rank["rank"] for rank in summary["per_rank"]]
    assert rank_numbers == [0, 1, 2, 3]
