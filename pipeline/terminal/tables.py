"""Tables and sentences that commands print: results of the stages, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from training.settings import TrainSettings

if TYPE_CHECKING:
    from training.gridsearch.results import Score

#: Of a search, the best.
_ROWS_SHOWN: Final = 10


def describe(settings: TrainSettings) -> str:
    """The run in a sentence: method, optimiser, workers and the learning rate in effect.

    Examples:
        >>> describe(TrainSettings(algorithm="ar-sgd", optimizer="sgd", workers=4))
        'ar-sgd with sgd, 4 worker(s), learning rate 0.004 (0.001 x 4 workers)'
    """
    rate = settings.effective_learning_rate
    scaled = f" ({settings.learning_rate:g} x {settings.workers} workers)" if rate != settings.learning_rate else ""
    slow = ""
    if settings.slowmo is not None:
        average = "with" if settings.slowmo_is_exact else "without"
        slow = (
            f", SlowMo {average} exact average (tau {settings.slowmo.tau}, alpha {settings.slowmo.alpha:g}, beta "
            f"{settings.slowmo.beta:g}; state of {settings.optimizer}: {settings.state_policy})"
        )
    return (
        f"{settings.algorithm} with {settings.optimizer}, {settings.workers} worker(s), learning rate "
        f"{rate:g}{scaled}{slow}"
    )


def rank_table(summary: dict[str, Any]) -> Table:
    """What each rank did and where its time went; pairwise averages where there are any."""
    ranks = summary["per_rank"]
    has_pairs = any(rank["averages_begun"] for rank in ranks)
    table = Table("rank", "steps", "events", "compute [s]", "talk [s]", "wait [s]")
    for name in ("averages", "staleness") if has_pairs else ():
        table.add_column(name)
    table.add_column("accuracy")
    for rank in ranks:
        seconds = rank["seconds_by_kind"]
        pairs = (
            f"{rank['averages_begun']}+{rank['averages_received']}",
            f"{rank['mean_staleness']:.1f}, max {rank['max_staleness']}",
        )
        table.add_row(
            str(rank["rank"]),
            str(rank["steps"]),
            f"{rank['samples']:,}",
            f"{seconds.get('compute', 0.0):.2f}",
            f"{seconds.get('communicate', 0.0):.2f}",
            f"{rank['wait_seconds']:.2f}",
            *(pairs if has_pairs else ()),
            f"{rank['worker_val_accuracy']:.3f}",
        )
    return table


def search_table(scores: list[Score]) -> Table:
    """The best settings of a search."""
    from training.gridsearch.results import latency, pareto_front

    fronts = {"size": pareto_front(scores), "time": pareto_front(scores, latency)}
    title = f"the best {min(_ROWS_SHOWN, len(scores))} of {len(scores)} settings"
    table = Table("layers", "batch", "rate", "epochs", title=title, title_justify="left")
    for name in ("parameters", "accuracy", "loss", "time/event [us]", "not beaten in"):
        table.add_column(name, justify="right")
    for each in scores[:_ROWS_SHOWN]:
        trial = each.trial
        table.add_row(
            "-".join(map(str, trial.hidden)),
            str(trial.batch_size),
            f"{trial.learning_rate:g}",
            str(trial.epochs),
            f"{each.num_parameters:,}",
            f"{each.accuracy:.4f} +- {each.accuracy_spread:.4f}",
            f"{each.loss:.4f}",
            f"{each.latency:.1f}",
            ", ".join(name for name, front in fronts.items() if each in front),
        )
    return table


def evaluation_tables(metrics: Mapping[str, Any]) -> list[Table]:
    """For the terminal: accuracy and areas by model, the working points, and rates where they are known."""
    classes, signal = metrics["classes"], metrics["signal"]
    summary = Table("model", "accuracy", *(f"AUC {name}" for name in classes))
    points = Table("model", f"{signal} kept", "threshold", *(f"{name} left [%]" for name in classes if name != signal))
    rates = Table("model", f"{signal} kept", *(f"{name} [1/s]" for name in classes), "purity")
    for name, run in metrics["runs"].items():
        summary.add_row(name, _words(run["accuracy"]), *(_words(run["auc"][each]) for each in classes))
        for point in run["working_points"]:
            kept = f"{100 * point['wanted']:g}%"
            if not point["measurable"]:
                points.add_row(name, kept, f"- ({point['num_failing']:.1f} < 10)")
                continue
            points.add_row(name, kept, f"{point['threshold']:.4f}", *map(_interval, point["backgrounds"].values()))
            if metrics["rates_before"] is not None:
                purity = "not defined" if point["purity"] is None else f"{point['purity']:.3f}"
                rates.add_row(name, kept, *(f"{point['rates'][each]:.3g}" for each in classes), purity)
    points.caption = "-: not measurable, so few signal events are expected to fail"
    for table in (summary, points, rates):
        table.columns[0].no_wrap = True
    return [summary, points, *([rates] if rates.row_count else [])]


def _words(estimate: Mapping[str, float]) -> str:
    return f"{estimate['value']:.3f} ± {estimate['error']:.3f}"


def _interval(efficiency: Mapping[str, float]) -> str:
    low, value, high = efficiency["low"], efficiency["value"], efficiency["high"]
    return f"{100 * value:.2f} +{100 * (high - value):.2f} -{100 * (value - low):.2f}"


def export_table(found: dict[str, Any]) -> Table:
    """Sizes, parity and times."""
    table = Table("network", "size [kB]", "differs by", "median [us]", "99 % [us]", "99.9 % [us]", "events/s")
    for network, each in found.items():
        times = each["latency_us"]
        table.add_row(
            network,
            f"{each['bytes'] / 1000:,.1f}",
            f"{each['largest_difference']:.1e}",
            *(f"{times[name]:,.1f}" for name in ("p50", "p99", "p99_9")),
            f"{each['events_per_second']:,.0f}",
        )
    return table
