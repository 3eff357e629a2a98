"""Summarises a finished run in a few numbers, from the records of its ranks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from hep_core.atomic_files import new_file
from training.loop.records import Record, read_records, write_records
from training.settings import TrainSettings

CYCLES: Final = "cycles.jsonl"
"""File with a line for each sum over the agents of Spark."""


def write_summary(
    out_dir: Path, network: str, settings: TrainSettings, num_parameters: int
) -> None:
    """Write `summary.json`, and into the records of each rank what the ranks have in common."""
    ranks = read_records(out_dir)
    for rank, records in enumerate(ranks):
        write_records(out_dir / "metrics" / f"rank-{rank}.jsonl", records)
    history = ranks[0]
    best = history[history[-1]["best_epoch"]]
    content = {
        "model": network,
        "algorithm": settings.algorithm.name,
        "slowmo": None if settings.slowmo is None else settings.slowmo.model_dump(),
        "slowmo_exact_average": settings.slowmo is not None and settings.slowmo_is_exact,
        "optimizer": str(settings.optimizer),
        "workers": settings.workers,
        "epochs": settings.epochs,
        "steps": round(
            sum(record["steps"] for records in ranks for record in records) / len(ranks)
        ),
        **count_samples(history),
        "own_rows": settings.skew is not None,
        "num_parameters": num_parameters,
        "learning_rate_in_effect": settings.effective_learning_rate,
        "best_epoch": best["epoch"],
        "best_val_loss": best["val_loss"],
        "best_val_accuracy": best["val_accuracy"],
        "seconds": sum(record["seconds"] for record in history),
        "consensus_distance": history[-1]["consensus_distance"],
        **_cycles(out_dir, ranks),
        "per_rank": [summarize_rank(records) for records in ranks if records],
    }
    content["acted"] = count_actions(settings, content["per_rank"])
    with new_file(out_dir / "summary.json") as unfinished:
        unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")


def count_samples(history: Sequence[Record]) -> dict[str, int]:
    """Events that all ranks trained on in a run, those of its epochs that they did not, and the events of an epoch.

    Examples:
        >>> count_samples([{"samples_all_ranks": 9, "train_rows": 10}, {"samples_all_ranks": 10, "train_rows": 10}])
        {'samples': 19, 'samples_left_out': 1, 'train_rows': 10}
    """
    samples, rows = (
        sum(record[name] for record in history) for name in ("samples_all_ranks", "train_rows")
    )
    return {
        "samples": samples,
        "samples_left_out": rows - samples,
        "train_rows": history[-1]["train_rows"],
    }


def count_actions(
    settings: TrainSettings, numbers: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """How often a training did what its settings ask for now and then, added up; without what nobody counted.

    Examples:
        >>> settings = TrainSettings(slowmo={"tau": 4}, checkpoint_steps=2)
        >>> count_actions(settings, [{"averages": 8, "slowmo_steps": 2}, {"averages": 8, "slowmo_steps": 2}])
        {'averages': 16, 'slowmo_steps': 4}
    """
    counted = [name for name in settings.counters if any(name in each for each in numbers)]
    return {name: sum(each.get(name, 0) for each in numbers) for name in counted}


def summarize_rank(records: list[Record]) -> Record:
    """The summary of one rank: sums over its epochs."""
    seconds = _seconds(records)
    return {
        "rank": records[-1]["rank"],
        "steps": sum(record["steps"] for record in records),
        "samples": sum(record["samples"] for record in records),
        "seconds_by_kind": {kind: round(value, 3) for kind, value in sorted(seconds.items())},
        "wait_seconds": round(sum(record["wait_seconds"] for record in records), 3),
        "bytes_sent": sum(record["bytes_sent"] for record in records),
        **_counted(records),
        "worker_val_accuracy": records[-1].get("worker_val_accuracy", records[-1]["val_accuracy"]),
    }


def utilisation(records: Iterable[Record]) -> float:
    """Share of the workers' time in which they train; NaN without time.

    Examples:
        >>> utilisation([{"seconds_by_kind": {"compute": 3.0, "read": 3.0, "wait": 2.0}}])
        0.75
    """
    seconds = _seconds(records)
    return (
        (seconds["compute"] + seconds["read"]) / seconds.total()
        if seconds.total()
        else float("nan")
    )


def _seconds(records: Iterable[Record]) -> Counter[str]:
    seconds: Counter[str] = Counter()
    for record in records:
        seconds.update(record["seconds_by_kind"])
    return seconds


def _cycles(out_dir: Path, ranks: list[list[Record]]) -> Record:
    """Summary of the sums over the agents of Spark; empty for other runs."""
    if not (out_dir / CYCLES).exists():
        return {}
    cycles = [
        json.loads(line) for line in (out_dir / CYCLES).read_text(encoding="utf-8").splitlines()
    ]
    return {
        "cycles": len(cycles),
        "mean_cycle_seconds": sum(cycle["seconds"] for cycle in cycles) / max(len(cycles), 1),
        **{
            name: sum(cycle[name] for cycle in cycles)
            for name in ("bytes_reduced", "bytes_broadcast")
        },
        "utilisation": utilisation(record for records in ranks for record in records),
    }


def _counted(records: list[Record]) -> Record:
    """What the algorithm counted: sums; of a histogram the mean and the highest number."""
    found: Record = {"counted": []}
    for name in records[-1]["counted"]:
        values = [record[name] for record in records]
        if not isinstance(values[0], dict):
            found[name] = sum(values)
            found["counted"].append(name)
            continue
        times: Counter[int] = Counter()
        for value in values:
            times.update({int(number): count for number, count in value.items()})
        found[f"mean_{name}"] = sum(number * count for number, count in times.items()) / (
            times.total() or 1
        )
        found[f"max_{name}"] = max(times, default=0)
    return found
