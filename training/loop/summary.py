"""Summarises a finished run in a few numbers, from the records of its ranks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hep_core.atomic_files import new_file
from training.loop.records import Record, read_records, write_records
from training.settings import TrainSettings

CYCLES: Final = "cycles.jsonl"
"""File with a line for each sum over the agents of Spark."""


def write_summary(
    out_dir: Path, network: str, settings: TrainSettings, num_parameters: int
) -> None:
    """Write `summary.json` in the folder of a run, and complete the records of each rank.

    The files of the records are overwritten with the results that are common to all ranks.

    `network`: name of the network. `num_parameters`: number of its parameters.
    """
    ranks = read_records(out_dir)
    for rank, records in enumerate(ranks):
        write_records(out_dir / "metrics" / f"rank-{rank}.jsonl", records)
    rank_summaries = [summarize_rank(records) for records in ranks if records]
    num_steps = sum(summary["steps"] for summary in rank_summaries)
    # Common results are in the records of all ranks, so those of rank 0 are enough.
    history = ranks[0]
    best = history[history[-1]["best_epoch"]]
    summary = {
        "model": network,
        "algorithm": settings.algorithm.name,
        "slowmo": None if settings.slowmo is None else settings.slowmo.model_dump(),
        "slowmo_exact_average": settings.slowmo is not None and settings.slowmo_is_exact,
        "optimizer": str(settings.optimizer),
        "workers": settings.workers,
        "epochs": settings.epochs,
        "steps": round(num_steps / len(ranks)),
        **count_samples(history),
        "own_rows": settings.skew is not None,
        "num_parameters": num_parameters,
        "learning_rate_in_effect": settings.effective_learning_rate,
        "best_epoch": best["epoch"],
        "best_val_loss": best["val_loss"],
        "best_val_accuracy": best["val_accuracy"],
        "seconds": sum(record["seconds"] for record in history),
        "consensus_distance": history[-1]["consensus_distance"],
        **_summarize_cycles(out_dir, ranks),
        **summarize_sums(rank_summaries),
        "per_rank": rank_summaries,
        "acted": count_actions(settings, rank_summaries),
    }
    with new_file(out_dir / "summary.json") as unfinished:
        unfinished.write_text(json.dumps(summary, indent=1), encoding="utf-8")


def count_samples(history: Sequence[Record]) -> dict[str, int]:
    """Count the events that all ranks trained on in a run, those left out, and those of an epoch.

    Left out are as many as the rows of all epochs exceed the events that ranks trained on.

    `history`: the merged records of one rank.

    Examples:
        >>> first = {"samples_all_ranks": 9, "train_rows": 10}
        >>> second = {"samples_all_ranks": 10, "train_rows": 10}
        >>> count_samples([first, second])
        {'samples': 19, 'samples_left_out': 1, 'train_rows': 10}
    """
    num_samples = sum(record["samples_all_ranks"] for record in history)
    num_rows = sum(record["train_rows"] for record in history)
    return {
        "samples": num_samples,
        "samples_left_out": num_rows - num_samples,
        "train_rows": history[-1]["train_rows"],
    }


def count_actions(
    settings: TrainSettings, rank_summaries: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Sum the counters of the actions that the settings ask for, over the ranks.

    A sum of 0 shows that a setting had no effect. Actions that no rank counted are left out.

    Examples:
        >>> settings = TrainSettings(slowmo={"tau": 4}, checkpoint_steps=2)
        >>> rank = {"averages": 8, "slowmo_steps": 2}
        >>> count_actions(settings, [rank, rank])
        {'averages': 16, 'slowmo_steps': 4}
    """
    totals: dict[str, float] = {}
    for name in settings.counters:
        counts = [summary[name] for summary in rank_summaries if name in summary]
        if counts:
            totals[name] = sum(counts)
    return totals


def summarize_rank(records: list[Record]) -> Record:
    """Return the summary of one rank: mostly sums over its epochs."""
    seconds_by_kind = sorted(_seconds_by_kind(records).items())
    last = records[-1]
    return {
        "rank": last["rank"],
        "steps": sum(record["steps"] for record in records),
        "samples": sum(record["samples"] for record in records),
        "seconds_by_kind": {category: round(seconds, 3) for category, seconds in seconds_by_kind},
        "wait_seconds": round(sum(record["wait_seconds"] for record in records), 3),
        "bytes_sent": sum(record["bytes_sent"] for record in records),
        **_sum_counters(records),
        "worker_val_accuracy": last.get("worker_val_accuracy", last["val_accuracy"]),
    }


def summarize_sums(rank_summaries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Summarise the sums of a method with a joint model; empty for other methods.

    `sums` is their number, and `steps_per_cycle` a worker's steps between two sums of a shard, a
    mean over the workers. `effective_share` is the share of all steps that the pull leaves.

    `rank_summaries`: from `summarize_rank`.

    Examples:
        >>> rank = {"steps": 8, "cycles": 6, "mean_steps_per_cycle": 4.0, "effective_steps": 2.0}
        >>> summarize_sums([rank, {**rank, "mean_steps_per_cycle": 2.0}])
        {'sums': 6.0, 'steps_per_cycle': 3.0, 'effective_share': 0.25}
        >>> summarize_sums([{"steps": 8}])
        {}
    """
    if "effective_steps" not in rank_summaries[0]:
        return {}
    num_steps = sum(summary["steps"] for summary in rank_summaries)
    num_effective = sum(summary["effective_steps"] for summary in rank_summaries)
    return {
        "sums": _mean_of("cycles", rank_summaries),
        "steps_per_cycle": _mean_of("mean_steps_per_cycle", rank_summaries),
        "effective_share": num_effective / (num_steps or 1),
    }


def _mean_of(name: str, rank_summaries: Sequence[Mapping[str, Any]]) -> float:
    total: float = sum(summary[name] for summary in rank_summaries)
    return total / len(rank_summaries)


def utilisation(records: Iterable[Record]) -> float:
    """Return the share of the workers' time in which they read and compute; NaN without time.

    Examples:
        >>> utilisation([{"seconds_by_kind": {"compute": 3.0, "read": 3.0, "wait": 2.0}}])
        0.75
    """
    seconds = _seconds_by_kind(records)
    total = seconds.total()
    return (seconds["compute"] + seconds["read"]) / total if total else float("nan")


def _seconds_by_kind(records: Iterable[Record]) -> Counter[str]:
    """Sum the time of each kind of work over some records [s]."""
    seconds: Counter[str] = Counter()
    for record in records:
        seconds.update(record["seconds_by_kind"])
    return seconds


def _summarize_cycles(out_dir: Path, ranks: list[list[Record]]) -> Record:
    """Summarise the cycles of a run with agents of Spark; empty for other runs.

    A cycle is one sum of the agents' vectors by a Spark job, and its broadcast to all agents.
    """
    path = out_dir / CYCLES
    if not path.exists():
        return {}
    cycles = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    seconds = sum(cycle["seconds"] for cycle in cycles)
    all_records: list[Record] = []
    for records in ranks:
        all_records += records
    return {
        "cycles": len(cycles),
        "mean_cycle_seconds": seconds / max(len(cycles), 1),
        "bytes_reduced": sum(cycle["bytes_reduced"] for cycle in cycles),
        "bytes_broadcast": sum(cycle["bytes_broadcast"] for cycle in cycles),
        "utilisation": utilisation(all_records),
    }


def _sum_counters(records: list[Record]) -> Record:
    """Summarise the counters of the method over the epochs of one rank.

    Numbers are added up, under their names, which `counted` lists. A histogram is a dictionary from
    bins, as text, to counts; it becomes its mean `mean_<name>` and highest bin `max_<name>`.
    """
    summary: Record = {"counted": []}
    for name in records[-1]["counted"]:
        counts = [record[name] for record in records]
        if isinstance(counts[0], dict):
            histogram: Counter[int] = Counter()
            for bins in counts:
                histogram.update({int(bin_text): times for bin_text, times in bins.items()})
            weighted_sum = sum(bin_value * times for bin_value, times in histogram.items())
            summary[f"mean_{name}"] = weighted_sum / (histogram.total() or 1)
            summary[f"max_{name}"] = max(histogram, default=0)
        else:
            summary[name] = sum(counts)
            summary["counted"].append(name)
    return summary
