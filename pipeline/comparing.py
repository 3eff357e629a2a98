"""`train --compare NAME`: the shell around `training.comparison`: run folder, console, provenance."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from features.dataset import FeatureDataset
from ingestion.secrets import redact
from models.style import PlotLabels
from pipeline.config import Config
from pipeline.doctor import read_machine, refuse_unfit_machine
from pipeline.errors import ConfigError, LoadTestError, RunFolderError, nearest
from pipeline.progress import Bar
from pipeline.provenance import code_version, now, package_versions
from pipeline.runner import Runner
from pipeline.stages.train import Train
from pipeline.store import Version, write_atomically
from training.comparison.drawing import draw
from training.comparison.page import render as render_page
from training.comparison.planning import Job, Plan, make_plan
from training.comparison.results import Comparison, Timing, collect, load
from training.comparison.running import count_all, run_job
from training.comparison.statistics import mean_of
from training.comparison.timing import time_model
from training.comparison.variants import COMPARISONS, METHOD_NAMES, METHODS, Column, Variant

_FOLDER: Final = "compare"
_RESULT: Final = "comparison.json"
_FIGURES: Final = "figures"


class Comparer(Runner):
    """Compares optimisers on the features of a run folder.

    What it writes, all in `<run_dir>/compare/<name>/`:
        comparison.json, comparison.md, figures/    the result
        runs/<network>/<method>/seed-<n>/           each run, as `train` leaves it, and `test.json`
        timing/<network>/...                        short runs that measure time
        jobs/                                       logs of the ranks
    """

    def __init__(self, config: Config, console: Console, *, command: str) -> None:
        super().__init__(config, console)
        self._command = command

    def compare(self, name: str, *, force: bool = False) -> Path:
        """Make a comparison, as far as it is not made, and draw it; returns the page.

        Args:
            name: One of `training.comparison.variants.COMPARISONS`.
            force: Train all runs again.

        Raises:
            ConfigError: There is no comparison of this name.
            MissingInputError: There are no features yet.
            TrainingError: A run cannot be done; the message names it.
            RunFolderError: The folder is in use or cannot be written.
        """
        refuse_unknown(name)
        with self._locked():
            upstream = self._upstream(Train())
            self._say_what_is_stale(Train(), upstream)
            features = upstream["features"]
            self._refuse_load_test(features)
            folder = self.config.run_dir / _FOLDER / name
            try:
                if force:
                    shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True, exist_ok=True)
                return self._compare(name, features, folder)
            except OSError as cause:
                raise RunFolderError(
                    f"the comparison could not be written or read ({cause}). Check space and permissions of {folder}, "
                    f"or compare again with --force."
                ) from cause

    def _compare(self, name: str, features: Version, folder: Path) -> Path:
        config = self.config
        dataset = FeatureDataset.load(features.folder)
        plan = make_plan(
            name,
            config.compare,
            base=config.train,
            networks=config.model,
            dataset=dataset,
            folder=folder,
            cores=self._cores(),
        )
        found = load(folder / _RESULT, plan.digest)
        if found is None:
            found = self._make(plan, dataset, features)
            write_atomically(folder / _RESULT, found.to_json())
        else:
            self._print("[bold]compare[/]: all runs are done; drawing again")
        report = config.report
        labels = PlotLabels(report.experiment, report.sample_note, report.energy_tev)
        drawn = draw(found, labels, folder / _FIGURES)
        page = folder / "comparison.md"
        page.write_text(render_page(found, drawn, folder=_FIGURES), encoding="utf-8")
        for model in found.models:
            self.console.print(table_of(found, model))
        return page

    def _make(self, plan: Plan, dataset: FeatureDataset, features: Version) -> Comparison:
        """Everything but the drawing."""
        self._look_for_mpi()
        code = code_version()
        for job in plan.jobs:
            self._run_job(job, dataset, code)
        for job in plan.converging:
            with Bar(self.console, "predict the test split", "models") as bar:
                count_all(job.runs, dataset.files("test"), bar)
        results = collect(plan.runs())
        config = self.config
        return Comparison(
            name=plan.name,
            digest=plan.digest,
            made=self._made(),
            settings={key: getattr(config, key).model_dump(mode="json") for key in ("compare", "train", "model")},
            data={
                "version": features.name,
                "classes": dataset.classes,
                "counts": dataset.counts,
                "sample_note": config.report.sample_note,
            },
            runs=results,
            timing={
                job.runs[0].model: self._time(plan, job, dataset, is_first=not place)
                for place, job in enumerate(plan.converging)
            },
        )

    def _run_job(self, job: Job, dataset: FeatureDataset, code: str) -> None:
        left = sum(not run.is_done for run in job.runs)
        before = f", {len(job.runs) - left} done before" if left < len(job.runs) else ""
        self._print(f"[bold]compare[/]: {job.title}: {len(job.runs)} run(s){before}")
        with Bar(self.console, "train", "steps") as bar:
            run_job(job, dataset, code=code, on_progress=bar, on_loss=lambda words: self._print(f"  {words}"))

    def _time(self, plan: Plan, job: Job, dataset: FeatureDataset, *, is_first: bool) -> Timing:
        """The scaling study is of the first network, as in the thesis it is of one."""
        model, seed = job.runs[0].model, job.runs[0].seed
        one_of_each = [run for run in job.runs if run.seed == seed]
        results = collect(one_of_each[:1])
        with Bar(self.console, f"simulate {model}", "runs") as bar:
            return time_model(
                plan.timing_runs(model),
                one_of_each,
                [group.rows for group in dataset.splits["train"]],
                num_parameters=results[0].summary["num_parameters"],
                most_workers=self.config.compare.simulated_workers if is_first else None,
                on_progress=bar,
            )

    def _made(self) -> dict[str, Any]:
        return {
            # The page is drawn from this, not from what was written.
            "command": redact(self._command),
            "created": now(),
            "machine": {"cpu": cpu_name(), "cores": self._cores()},
            "packages": package_versions(),
        }

    def _cores(self) -> int:
        return read_machine(run_dir=self.config.run_dir).cores

    def _look_for_mpi(self) -> None:
        refuse_unfit_machine(
            self.config.run_dir,
            Train.needs,
            workers=self.config.compare.workers,
            spark_master=self.config.spark.master,
            launcher=self.config.train.launcher,
            what="optimisers cannot be compared",
        )

    def _refuse_load_test(self, features: Version) -> None:
        if features.manifest["counters"]["load_test"] and not self.config.allow_load_test:
            raise LoadTestError(
                "these features are of a load-test sample: copies of few events, turned and mirrored. A comparison on "
                "them means nothing. To time it all the same, set allow_load_test: true."
            )

    def _print(self, words: str) -> None:
        self.console.print(words, highlight=False)


def refuse_unknown(name: str) -> None:
    """Refuse a comparison that does not exist.

    Raises:
        ConfigError: It does not; the message has the nearest name.
    """
    if name not in COMPARISONS:
        raise ConfigError(f"--compare {name}: there is no such comparison.{nearest(name, COMPARISONS)}")


def cpu_name() -> str:
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def table_of(comparison: Comparison, model: str) -> Table:
    """Mean test accuracy and its standard error, for the terminal."""
    table = Table(f"{model}: test accuracy", *(str(column) for column in Column))
    for method in METHODS:
        cells = []
        for column in Column:
            runs = comparison.of(model, Variant(method, column))
            mean = mean_of([run.counts.accuracy for run in runs]) if runs else None
            cells.append(f"{100 * mean.value:.2f} % ± {100 * mean.error:.2f}" if mean else "-")
        table.add_row(METHOD_NAMES[method], *cells)
    return table
