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
    ranks = run(**method, workers=4, epochs=3).records
    (tmp_path / "metrics").mkdir()
    for rank, records in enumerate(ranks):
        write_records(tmp_path / "metrics" / f"rank-{rank}.jsonl", records)

    write_summary(tmp_path, "hlf", settings(**method, workers=4, epochs=3), 51)

    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["slowmo_exact_average"] is is_exact
    # 320 events in batches of 10 for each of 4 workers.
    assert summary["steps"] == 3 * 8
    assert summary["samples"] == 3 * 320
    assert summary["train_rows"] == 320
    assert summary["seconds"] == pytest.approx(sum(record["seconds"] for record in ranks[0]))
    best = min(ranks[0], key=lambda record: record["val_loss"])
    assert summary["best_epoch"] == best["epoch"]
    assert summary["best_val_loss"] == best["val_loss"]
    assert [rank["rank"] for rank in summary["per_rank"]] == [0, 1, 2, 3]
