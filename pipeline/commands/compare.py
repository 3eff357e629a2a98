"""`compare NAME`: connects `training.studies` to run folder, console and provenance."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from features.dataset import FeatureDataset
from models.evaluation.style import PlotLabels
from models.networks.registry import ModelName
from pipeline.errors import ConfigError, RunFolderError, nearest
from pipeline.machine.facts import read_machine
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.runs.provenance import code_version, now, package_versions
from pipeline.runs.store import Version, write_atomically
from pipeline.stages.train import Train
from pipeline.terminal.grid import Grid
from pipeline.terminal.progress import Bar
from training.simulation.probe import Measurement
from training.studies.calibration import FILE as CALIBRATION
from training.studies.calibration import read_or_measure
from training.studies.drawing import draw
from training.studies.page import render as render_page
from training.studies.plan import StudyJob, StudyPlan, make_plan
from training.studies.results import Comparison, Timing, collect, load
from training.studies.runs import count_all, run_job
from training.studies.statistics import mean_of
from training.studies.timing import time_model
from training.studies.variants import ALL_METHODS, COMPARISONS, REFERENCE, TableColumn, Variant, title_of
from training.threads import use_threads

_FOLDER: Final = "compare"
_RESULT: Final = "comparison.json"
_FIGURES: Final = "figures"
_PAGE: Final = "comparison.md"
#: Files and folders of a comparison, which `--force` removes.
_WRITTEN: Final = ("runs", "timing", "jobs", _FIGURES, _RESULT, _PAGE, CALIBRATION)


def compare(run_folder: RunFolder, name: str, *, command: str, force: bool = False) -> Path:
    """Make the missing runs of a comparison of optimisers on the features of a run folder, and draw the results.

    Its files, in `<run_dir>/compare/<name>/`:
        comparison.json, comparison.md, figures/    the result
        runs/<network>/<method>/rate-times-<f>/seed-<n>/
                                                    each run, as `train` leaves it, and `test_events.json`
        timing/<network>/...                        short runs that measure time
        calibration.json                            measured messages
        jobs/                                       logs of the ranks

    Args:
        run_folder: The run folder.
        name: One of `training.studies.variants.COMPARISONS`.
        command: The command line, for the page.
        force: Train all runs again.

    Returns:
        The page.

    Raises:
        ConfigError: There is no comparison of this name.
        MissingInputError: There are no features yet.
        TrainingError: A run fails; the message names it.
        RunFolderError: The folder is in use or cannot be written.
    """
    if name not in COMPARISONS:
        raise ConfigError(f"compare {name}: there is no such comparison.{nearest(name, COMPARISONS)}")
    use_threads(run_folder.config.train.threads)
    with run_folder.locked("compare"):
        upstream = run_folder.upstream(Train())
        Runner(run_folder).say_what_is_stale(Train(), upstream)
        features = upstream["features"]
        run_folder.config.refuse_load_test(features.manifest["counters"]["load_test"])
        folder = run_folder.config.run_dir / _FOLDER / name
        try:
            if force:
                _remove_written(folder)
            folder.mkdir(parents=True, exist_ok=True)
            return _compare(run_folder, name, features, folder, command)
        except OSError as cause:
            raise RunFolderError(
                f"the comparison could not be written or read ({cause}). Check space and permissions of {folder}, "
                f"or compare again with --force."
            ) from cause


def _remove_written(folder: Path) -> None:
    for path in (folder / name for name in _WRITTEN):
        if path.is_dir():
            # This refuses a symbolic link.
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _compare(run_folder: RunFolder, name: str, features: Version, folder: Path, command: str) -> Path:
    config = run_folder.config
    dataset = FeatureDataset.load(features.folder)
    plan = make_plan(
        name,
        config.compare,
        base=config.train,
        networks=config.model,
        dataset=dataset,
        folder=folder,
        cores=_cores(run_folder),
    )
    found = load(folder / _RESULT, plan.digest)
    if found is None:
        found = _make(run_folder, plan, dataset, features, command, folder)
        write_atomically(folder / _RESULT, found.to_json())
    else:
        run_folder.console.print("[bold]compare[/]: all runs are done; redrawing", highlight=False)
    report = config.report
    labels = PlotLabels(report.experiment, report.sample_note, report.energy_tev)
    drawn = draw(found, labels, folder / _FIGURES)
    page = folder / _PAGE
    page.write_text(render_page(found, drawn, folder=_FIGURES), encoding="utf-8")
    for model in found.models:
        run_folder.console.print(table_of(found, model))
    return page


def _make(
    run_folder: RunFolder, plan: StudyPlan, dataset: FeatureDataset, features: Version, command: str, folder: Path
) -> Comparison:
    """All runs and measurements, without the drawing."""
    config = run_folder.config
    run_folder.refuse_unfit_machine(Train.needs, "optimisers cannot be compared", workers=config.compare.workers)
    code = code_version()
    for job in plan.jobs:
        _run_job(run_folder.console, job, dataset, code)
    with Bar(run_folder.console, "predict the test split", "models") as bar:
        count_all(plan.runs(), dataset.files("test"), bar)
    messages = read_or_measure(folder, config.train)
    found = Comparison(
        name=plan.name,
        digest=plan.digest,
        made=_made(run_folder, command),
        settings={key: getattr(config, key).model_dump(mode="json") for key in ("compare", "train", "model")},
        data={
            "version": features.name,
            "classes": dataset.classes,
            "counts": dataset.counts,
            "sample_note": config.report.sample_note,
        },
        runs=collect(plan.runs()),
        timing={},
    )
    for model in config.compare.models:
        found.timing[model] = _time(run_folder, plan, found, model, dataset, messages)
    return found


def _run_job(console: Console, job: StudyJob, dataset: FeatureDataset, code: str) -> None:
    left = sum(not run.is_done for run in job.runs)
    before = f", {len(job.runs) - left} done before" if left < len(job.runs) else ""
    console.print(f"[bold]compare[/]: {job.title}: {len(job.runs)} run(s){before}", highlight=False)
    with Bar(console, "train", "steps") as bar:
        run_job(
            job, dataset, code=code, on_progress=bar, on_loss=lambda words: console.print(f"  {words}", highlight=False)
        )


def _time(
    run_folder: RunFolder,
    plan: StudyPlan,
    found: Comparison,
    model: ModelName,
    dataset: FeatureDataset,
    messages: Sequence[Measurement],
) -> Timing:
    """Measured and simulated times of a network; the scaling study uses the first network only, as in the thesis."""
    config = run_folder.config.compare
    best = {variant: found.of(model, variant)[0] for variant in found.variants(model)}
    compared = [
        run
        for run in plan.runs()
        if run.model == model and run.spec.train.learning_rate == best[run.variant].learning_rate
    ]
    with Bar(run_folder.console, f"simulate {model}", "runs") as bar:
        return time_model(
            plan.timing_runs(model),
            compared,
            [group.rows for group in dataset.splits["train"]],
            num_parameters=best[REFERENCE].summary["num_parameters"],
            most_workers=config.simulated_workers if model == config.models[0] else None,
            messages=messages,
            on_progress=bar,
        )


def _made(run_folder: RunFolder, command: str) -> dict[str, Any]:
    return {
        "command": command,
        "created": now(),
        "machine": {"cpu": cpu_name(), "cores": _cores(run_folder)},
        "packages": package_versions(),
    }


def _cores(run_folder: RunFolder) -> int:
    return read_machine(run_dir=run_folder.config.run_dir).cores


def cpu_name() -> str:
    """Name of the processor, or of its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def table_of(comparison: Comparison, model: str) -> Grid:
    """Table of mean test accuracies with standard errors, for the terminal."""
    table = Grid("method", *(str(column) for column in TableColumn), title=f"{model}: test accuracy [%]")
    for method in ALL_METHODS:
        cells = []
        for column in TableColumn:
            runs = comparison.of(model, Variant(method, column))
            mean = mean_of([run.counts.accuracy for run in runs]) if runs else None
            cells.append(f"{100 * mean.value:.2f} ± {100 * mean.error:.2f}" if mean else "-")
        table.add_row(title_of(method), *cells)
    return table
