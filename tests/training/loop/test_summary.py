"""What `summary.json` says of a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulated import run, settings

from training.loop.records import write_records
from training.loop.summary import write_summary


@pytest.mark.parametrize(
    ("chosen", "is_exact"),
    [
        ({"algorithm": "ar-sgd"}, False),
        ({"algorithm": "ar-sgd", "slowmo": {"tau": 2}}, True),
        ({"algorithm": "d-psgd", "slowmo": {"tau": 2}}, False),
        ({"algorithm": "d-psgd", "slowmo": {"tau": 2, "exact_average": True}}, True),
    ],
    ids=str,
)
def test_a_summary_adds_up_epochs_and_knows_the_averages_of_slow_momentum(
    tmp_path: Path, chosen: dict[str, Any], is_exact: bool
) -> None:
    ranks = run(**chosen, workers=4, epochs=3).records
    (tmp_path / "metrics").mkdir()
    for rank, records in enumerate(ranks):
        write_records(tmp_path / "metrics" / f"rank-{rank}.jsonl", records)
    write_summary(tmp_path, "hlf", settings(**chosen, workers=4, epochs=3), 51)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["slowmo_exact_average"] is is_exact
    # 320 events in batches of 10 for each of 4 workers.
    assert (summary["steps"], summary["samples"], summary["train_rows"]) == (3 * 8, 3 * 320, 320)
    assert summary["seconds"] == pytest.approx(sum(record["seconds"] for record in ranks[0]))
    best = min(ranks[0], key=lambda record: record["val_loss"])
    assert (summary["best_epoch"], summary["best_val_loss"]) == (best["epoch"], best["val_loss"])
    assert [rank["rank"] for rank in summary["per_rank"]] == [0, 1, 2, 3]
