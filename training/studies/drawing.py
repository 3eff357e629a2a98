"""Draws all figures of a comparison, each with a caption about its content and its limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
from matplotlib.figure import Figure

from models.evaluation.style import PlotLabels, save_figure
from training.studies.figures import (
    Convergence,
    Times,
    plot_consensus,
    plot_convergence,
    plot_epoch_times,
    plot_scaling,
    plot_slowmo,
)
from training.studies.results import Comparison, Timing
from training.studies.variants import BEST, METHODS, PLAIN, Variant, title_of

#: Numbers of the thesis' figures for each network.
_CONVERGENCE: Final = {"hlf": "4.8", "particles": "4.10", "inclusive": "4.8 for the inclusive classifier"}
_SLOWMO: Final = {"hlf": "4.9", "particles": "4.11", "inclusive": "4.9 for the inclusive classifier"}
#: Relative error of a predicted time per batch above which the titles of simulated figures say so.
_LARGE_MISS: Final = 0.25


class Drawn(NamedTuple):
    """A figure on disk."""

    stem: str
    """Name of the PNG and PDF files, without extension."""
    model: str | None
    """Network of the figure; None for a figure of all networks."""
    title: str
    caption: str


def draw(comparison: Comparison, labels: PlotLabels, folder: Path) -> list[Drawn]:
    """Draw all figures.

    Args:
        comparison: Results of the comparison.
        labels: Words on the figures.
        folder: Folder of the figures; made if absent.
    """
    folder.mkdir(exist_ok=True)
    drawn = []
    for about, make in _figures(comparison, labels):
        save_figure(make(), folder / about.stem)
        drawn.append(about)
    return drawn


class _Checked(NamedTuple):
    """What simulated figures say about the check of their simulator."""

    title: str
    """Behind the title; empty for a good check."""
    caption: str
    labels: PlotLabels

    @classmethod
    def of(cls, timing: Timing, labels: PlotLabels) -> Self:
        """The words of a network's check."""
        words = "; ".join(
            f"{title_of(each['method'])} on {each['workers']} workers "
            f"{1e3 * each['predicted']:.3g} for {1e3 * each['measured']:.3g}"
            for each in timing.checks
        )
        caption = f"Check of the simulator on this machine, time per batch predicted for measured [ms]: {words}."
        if timing.miss <= _LARGE_MISS:
            return cls("", caption, labels)
        note = f"check misses by {100 * timing.miss:.0f} %" if timing.checks else "not checked"
        return cls(f"; {note}", caption, labels._replace(sample_note=f"{labels.sample_note}; {note}"))


def _figures(comparison: Comparison, labels: PlotLabels) -> Iterator[tuple[Drawn, Callable[[], Figure]]]:
    for model in comparison.models:
        yield from _times(comparison, model, labels)
        if comparison.timing[model].scaling:
            yield _scaling(comparison, model, labels)
        yield from _convergence(comparison, model, labels)
    words = "log scale; methods that average all gradients at every step agree at any time and are left out"
    about = Drawn(
        "consensus_distance",
        None,
        "Consensus distance",
        f"Root mean square distance of the workers' models from their mean, at the end of each epoch ({words}). Where "
        f"an epoch ends right after an outer step of SlowMo, the exact average brings it to 0, off the axis, and the "
        f"step without average widens it. Mean over the seeds; band: standard deviation over the seeds.",
    )
    yield about, lambda: plot_consensus(comparison, labels)


def _times(comparison: Comparison, model: str, labels: PlotLabels) -> Iterator[tuple[Drawn, Callable[[], Figure]]]:
    thesis = " (thesis, figure 4.1)" if model == comparison.models[0] else ""
    cores = comparison.made["machine"]["cores"]
    measured = {
        variant.algorithm: Times(
            *(comparison.curves(model, variant, name)[:, 1:].ravel() for name in ("communicate", "seconds"))
        )
        for variant in PLAIN
    }
    about = Drawn(
        f"fig_4_1_{model}_measured",
        model,
        f"Communication and wall time per epoch, measured{thesis}",
        f"All epochs of all seeds but the first of each run, {comparison.workers} ranks on {cores} core(s); "
        f"communication is the mean over the ranks, waiting included, and wall time includes the validation. With more "
        f"ranks than cores a rank that waits gives its core to another: this shows a crowded machine, not a cluster. "
        f"Boxes: quartiles; whiskers: 5 and 95 %.",
    )
    if measured[METHODS[0]].seconds.size:
        yield about, lambda: plot_epoch_times(measured, labels)
    simulated = {
        variant.algorithm: Times(
            *(np.array(comparison.timing[model].epochs[variant.key][name]) for name in ("communicate", "seconds"))
        )
        for variant in PLAIN
    }
    check = _Checked.of(comparison.timing[model], labels)
    about = Drawn(
        f"fig_4_1_{model}_simulated",
        model,
        f"Communication and wall time per epoch, simulated{thesis}{check.title}",
        f"The same runs on a simulated cluster: {comparison.workers} machines on 10 Gb/s ethernet that compute as fast "
        f"as one core here; the end of an epoch, where all wait for the last, counts as communication. {check.caption}",
    )
    yield about, lambda: plot_epoch_times(simulated, check.labels)


def _scaling(comparison: Comparison, model: str, labels: PlotLabels) -> tuple[Drawn, Callable[[], Figure]]:
    timing = comparison.timing[model]
    check = _Checked.of(timing, labels)
    cluster = timing.cluster
    most = max(each["workers"] for each in timing.measured)
    about = Drawn(
        f"fig_4_2_{model}",
        model,
        f"Speed-up and time per batch (thesis, figure 4.2){check.title}",
        f"Points: measured (medians of the epochs), up to {most} workers. Lines: simulated, with equal work for each "
        f"worker; a step takes {1e3 * cluster['step_seconds']:.3g} ms + {1e6 * cluster['event_seconds']:.3g} us per "
        f"event with a log-normal spread of {cluster['jitter']:.2g}, calibrated on one core. Upper row: messages as "
        f"between processes of this machine (latency {1e6 * cluster['latency_seconds']:.3g} us); lower: the thesis' "
        f"10 Gb/s ethernet (50 us). "
        f"t(1) is sequential SGD on one worker. Validation and checkpoints are left out. {check.caption}",
    )
    return about, lambda: plot_scaling(timing.measured, timing.scaling, check.labels)


def _convergence(
    comparison: Comparison, model: str, labels: PlotLabels
) -> Iterator[tuple[Drawn, Callable[[], Figure]]]:
    band = (
        "Averaged model, with event and class weights; mean over the seeds, band: their standard deviation. The first "
        "epochs may lie below the axis."
    )
    cores, workers = comparison.made["machine"]["cores"], comparison.workers
    number = _CONVERGENCE[model]

    def measured(variant: Variant) -> Convergence:
        accuracy, seconds = (comparison.curves(model, variant, name) for name in ("val_accuracy", "seconds"))
        return Convergence(accuracy, np.cumsum(seconds, axis=1))

    def simulated(variant: Variant) -> Convergence:
        runs = comparison.timing[model].convergence[variant.key]
        accuracy, seconds = (np.array([run[name] for run in runs]) for name in ("val_accuracy", "seconds"))
        return Convergence(accuracy, np.cumsum(seconds, axis=1))

    stem = f"fig_{number.split(' ')[0].replace('.', '_')}_{model}"
    about = Drawn(
        f"{stem}_measured",
        model,
        f"Convergence against epochs and measured time (thesis, figure {number})",
        f"{band} Time: wall time of {workers} ranks on {cores} core(s) of this machine; it says little of a cluster.",
    )
    yield about, lambda: plot_convergence({each: measured(each) for each in BEST}, "Measured wall time [s]", labels)
    check = _Checked.of(comparison.timing[model], labels)
    about = Drawn(
        f"{stem}_simulated",
        model,
        f"Convergence against epochs and simulated time (thesis, figure {number}){check.title}",
        f"{band} Accuracy and time are of the same simulated runs: {workers} machines on 10 Gb/s ethernet that compute "
        f"as fast as one core here. {check.caption}",
    )
    label = "Simulated time on a cluster [s]"
    yield about, lambda: plot_convergence({each: simulated(each) for each in BEST}, label, check.labels)
    stem = f"fig_{_SLOWMO[model].split(' ')[0].replace('.', '_')}_{model}"
    about = Drawn(
        stem, model, f"Effect of SlowMo (thesis, figure {_SLOWMO[model]})", f"AD-PSGD left, SwarmSGD right. {band}"
    )
    yield about, lambda: plot_slowmo(comparison, model, labels)
