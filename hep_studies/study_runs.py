"""Makes the runs of a study in the run folder: those that are missing or stale."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Final

import psutil
from pydantic import Field, TypeAdapter

from features.dataset import FeatureDataset
from features.schema import SPLITS
from hep_core.allocation import usable_cores
from hep_core.atomic_files import write_atomically
from hep_studies.plan import (
    PlannedRun,
    Subject,
    digest_of,
    digest_of_study,
    planned_runs,
    results_of,
)
from hep_studies.run_in_simulator import simulate_all
from hep_studies.run_on_ranks import num_steps, train_on_ranks
from hep_studies.run_result import encoded_test_weights
from hep_studies.studied_workload import check_workload
from hep_studies.study import StudySettings
from hep_studies.study_files import Study, described_combinations
from hep_studies.study_result import (
    RESULT_FILE,
    EventsDescription,
    Machine,
    StudyProvenance,
    StudyResult,
    TimeCheck,
    as_plain,
    read_study_result,
)
from hep_studies.study_sections import AddedValues
from hep_studies.sweep_extension import described_additions, extended_sweeps
from hep_studies.time_checks import check_times
from models.evaluation.style import PlotLabels
from pipeline.errors import ConfigError
from pipeline.reporting.origin import plot_labels
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.runs.code_meaning import code_digests
from pipeline.runs.outputs import content_digest
from pipeline.runs.plugin_code import network_code
from pipeline.runs.provenance import code_version, now, package_versions
from pipeline.runs.state_files import read_state
from pipeline.stages.train import Train, method_modules
from pipeline.terminal.progress import Bar
from training.errors import IdleSettingError, StudyError
from training.settings import TrainSettings
from training.workloads.hep_settings import HepSettings
from training.workloads.registry import WorkloadSettings

#: Folder, in that of the study, of the time checks and of the load of the machine.
TIMING: Final = "timing"
_BUSY_CORES: Final = TypeAdapter(Annotated[float, Field(ge=0, allow_inf_nan=False)])
#: Modules whose code the checks of the times depend on.
_CHECK_MODULES: Final = ("training.launching.message_probe", "hep_studies.time_checks")
#: Time for which the processors are watched before times are measured [s].
_WATCH_SECONDS: Final = 3.0
_PUBLIC_FILES: Final = "the public files"
PlanRuns = Callable[[AddedValues], list[PlannedRun]]
"""Return the runs of a study with these values added to its sweeps."""
#: Sources of the rows of workloads, for the page.
_ROW_SOURCES: Final = {
    "surface": "Beale's function",
    "mnist": _PUBLIC_FILES,
    "cifar10": _PUBLIC_FILES,
}


def run_study(run_folder: RunFolder, study: Study, folder: Path, command: str) -> StudyResult:
    """Make the missing runs of a study in its folder, and return the result of all.

    If the stored result has the digest of the same runs, it is returned with the present settings
    of claims, tables and figures. Else runs without a result are made, and the new result is
    stored. `command`: the command line, for the page.

    Raises:
        ConfigError: The study cannot run, or settings of its runs have no effect.
        TrainingError: A run fails; the message names it.
    """
    settings = study.settings
    train = run_folder.config.train
    if train.launcher.startswith("spark"):
        raise ConfigError(
            f"compare: train.launcher is {train.launcher}, which holds executors of a Spark "
            f"cluster for one training. Add --set train.launcher=mpirun (or srun)."
        )
    subject, events = subject_of_study(run_folder, study)
    check_settings_have_effect(settings)

    def plan(added: AddedValues) -> list[PlannedRun]:
        """Return the runs of the study with values added to its sweeps."""
        extended = settings.with_added(added)
        return planned_runs(extended, subject, train, folder, code_digest=code_digest)

    runs = plan({})
    # Measured before any run begins: the runs themselves keep the cores busy.
    load = busy_cores(runs, folder / TIMING / "load.json")
    checks = measure_checks(run_folder, study, runs, folder)
    stored = _finished_result(study, folder, plan)
    if stored is not None:
        run_folder.say("compare: all runs are done; redrawing")
        result = replace(stored, study=settings.with_added(stored.added), checks=checks)
        if checks != stored.checks:
            write_atomically(folder / RESULT_FILE, as_plain(result))
        return result

    added, runs = _make_runs_with_extension(run_folder, study, plan, folder, code_version())
    machine = Machine(_cpu_name(), usable_cores(), load)
    weights = "" if settings.times_only else encoded_test_weights(subject.settings.open())
    extended = settings.with_added(added)
    result = StudyResult(
        name=study.name,
        form=study.form,
        digest=digest_of_study(extended, runs),
        study=extended,
        provenance=StudyProvenance(_without_paths(command), now(), machine, package_versions()),
        events=events,
        checks=checks,
        runs=results_of(runs),
        test_weights=weights,
        added=added,
    )
    write_atomically(folder / RESULT_FILE, as_plain(result))
    return result


def _finished_result(study: Study, folder: Path, plan: PlanRuns) -> StudyResult | None:
    """Return the stored result if it has all runs of the study; None if runs are to be made.

    The runs of values that were added belong to it, if no further values are to be added now. A
    missing or damaged result is made again.
    """
    try:
        stored = read_study_result(folder / RESULT_FILE)
    except StudyError:
        return None
    extended = study.settings.with_added(stored.added)
    if stored.digest != digest_of_study(extended, plan(stored.added)):
        return None
    is_inside = extended_sweeps(study.settings, stored.added, stored.runs) == stored.added
    return stored if is_inside else None


def _make_runs_with_extension(
    run_folder: RunFolder, study: Study, plan: PlanRuns, folder: Path, code: str
) -> tuple[AddedValues, list[PlannedRun]]:
    """Make the missing runs, and those of values beyond the edges at which methods are best.

    An interrupted study continues: its finished runs lead to the same values. `code`: version of
    the code, stored with each run.

    Returns:
        The values that were added to the sweeps of the study, and all runs.
    """
    added: AddedValues = {}
    while True:
        runs = plan(added)
        _make_missing_runs(run_folder, study, runs, folder, code)
        further = extended_sweeps(study.settings, added, results_of(runs))
        if further == added:
            return added, runs
        added = further
        run_folder.say(
            f"compare: {study.name}: best values are at an edge; added are "
            f"{described_additions(added)}"
        )


def _without_paths(command: str) -> str:
    """Return a command line for the page, in which absolute paths have only their last name."""
    return re.sub(r"(?<=[ =])/\S*/", "", command)


def _cpu_name() -> str:
    """Return the name of the processor as Linux states it, else that of its architecture."""
    description = Path("/proc/cpuinfo")
    if description.exists():
        name = re.search(r"^model name\s*: (.+)$", description.read_text(), re.MULTILINE)
        if name is not None:
            return name[1]
    return platform.machine()


def check_settings_have_effect(study: StudySettings) -> None:
    """Refuse a study whose runs ask one worker for what only several do, before any run begins.

    Raises:
        ConfigError: There are such runs; the message names all.
    """
    mistakes = []
    for description, method, values in described_combinations(study):
        try:
            study.train_settings(method, values, 1).check_one_worker()
        except IdleSettingError as mistake:
            mistakes.append(f"  {description}: {mistake}")
    if mistakes:
        title = "compare: in these runs something that is set has no effect:"
        raise ConfigError("\n".join([title, *mistakes]))


def code_digest(subject: Subject, train: TrainSettings, is_simulated: bool) -> str:
    """Return the digest of the code that a run's result depends on; another digest makes it stale.

    It covers the program that runs it, its method, workload and network, and what they import.
    Comments and docstrings, other methods, other networks and the text of the page are not part of
    it.
    """
    if is_simulated:
        modules = ["hep_studies.run_in_simulator"]
    else:
        modules = ["hep_studies.run_on_ranks", "training.launching.rank_process"]
    modules += method_modules(train)
    modules.append(type(subject.settings).__module__)
    if isinstance(subject.settings, HepSettings):
        modules.append(subject.settings.network.module)
    return _digest_of_modules(tuple(modules))


@cache
def _digest_of_modules(modules: tuple[str, ...]) -> str:
    """Return the digest of the code of modules and of what they import; computed once per set."""
    return digest_of(code_digests(modules))


def busy_cores(runs: Sequence[PlannedRun], path: Path) -> float:
    """Return the number of cores that other work keeps busy just before the runs.

    It is measured for a few seconds, and kept in the file `path`. An interrupted study measures
    again; the highest number counts. A finished one returns that of the file. The load average of
    the machine would also count what ran earlier, such as the study before.
    """
    earlier_load = 0.0
    if path.exists():
        remedy = "Remove it; the load is measured again."
        earlier_load = read_state(path, _BUSY_CORES, remedy=remedy)
        if all(run.result is not None for run in runs):
            return earlier_load
    num_cores = psutil.cpu_count() or 1
    load = max(earlier_load, psutil.cpu_percent(_WATCH_SECONDS) / 100 * num_cores)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(load), encoding="utf-8")
    return load


def measure_checks(
    run_folder: RunFolder, study: Study, runs: Sequence[PlannedRun], folder: Path
) -> list[TimeCheck]:
    """Return the checks of simulated times on this machine; measured times need none.

    A line is printed for each refused one.
    """
    if study.settings.execution != "simulate":
        return []
    run_folder.say(f"compare: {study.name}: check of the simulated times")
    code = _digest_of_modules(_CHECK_MODULES)
    checks = check_times(runs, folder / TIMING, cores=usable_cores(), code=code)
    for check in checks:
        if check.refused:
            run_folder.say(
                f"compare: {study.name}: the check of {check.method} is not used: {check.refused}. "
                f"The same command measures it again when the machine is quiet."
            )
    return checks


def subject_of_study(run_folder: RunFolder, study: Study) -> tuple[Subject, EventsDescription]:
    """Return what the study trains, and a description of its rows for the page.

    A workload with rows of its own, such as images, is described by itself. The name of a network
    stands for the events of the stage `features` of the run folder: their digest becomes part of
    that of each run.

    Raises:
        ConfigError: There is no such workload, such as the network of a plugin.
    """
    workload = study.settings.workload
    if not isinstance(workload, str):
        return Subject(workload), _description_of_workload(workload)
    check_workload(workload, f"study {study.name}")
    upstream = run_folder.upstream(Train(), command="compare")
    Runner(run_folder).note_stale_inputs(Train(), upstream)
    features = upstream["features"]
    dataset = FeatureDataset.load(features.folder)
    network = run_folder.config.model.of(workload)
    folder = features.folder.absolute()
    settings = HepSettings(folder=folder, network=network, plugin_code=network_code(workload))
    files = ["dataset.json", "scaler.json", *(f"{split}/*" for split in SPLITS)]
    digest = content_digest(features.files, {}, files)
    description = EventsDescription(
        version=features.name,
        classes=dataset.classes,
        sample_note=event_labels(run_folder).sample_note,
        counts={split: [*counts, sum(counts)] for split, counts in dataset.counts.items()},
        digest=digest,
    )
    return Subject(settings, digest), description


def _description_of_workload(settings: WorkloadSettings) -> EventsDescription:
    """Return the description of the rows of images or of a surface."""
    workload = settings.open()
    source = _ROW_SOURCES.get(settings.name, settings.name)
    if settings.meaning.get("digits"):
        source = "the digits of scikit-learn, enlarged"
    return EventsDescription(
        version=settings.name,
        classes=[],
        sample_note=source,
        counts={split: [sum(workload.group_rows(split))] for split in SPLITS},
    )


def event_labels(run_folder: RunFolder) -> PlotLabels:
    """Return the labels on plots of the events of the run folder."""
    ingested = run_folder.store("ingest").current()
    files = ingested.manifest.inputs if ingested else ()
    return plot_labels(run_folder.config.model_dump(mode="json"), files)


def figure_labels(run_folder: RunFolder, result: StudyResult) -> PlotLabels:
    """Return the labels on the figures of a study."""
    if isinstance(result.study.workload, str):
        return event_labels(run_folder)
    return PlotLabels("", result.events["sample_note"], None)


def _make_missing_runs(
    run_folder: RunFolder, study: Study, runs: Sequence[PlannedRun], folder: Path, code: str
) -> None:
    """Make the runs that are not finished, in the simulator or on MPI ranks.

    Each run writes its result into its own folder, so that an interrupted study continues. `code`:
    version of the code, stored with each run.
    """
    if study.settings.execution == "simulate":
        unfinished = _unfinished_runs(run_folder, study.name, runs)
        if unfinished:
            with Bar(run_folder.console, "simulate", "runs") as bar:
                simulate_all(unfinished, cores=usable_cores(), code=code, on_progress=bar)
        return

    for run in runs:
        # Runs with fewer events than workers are refused before any run begins.
        num_steps(run)
    # MPI runs of the same number of workers share their ranks, which start only once.
    for num_workers in sorted({run.train.workers for run in runs}):
        label = f"train with {num_workers} worker(s)"
        batch = [run for run in runs if run.train.workers == num_workers]
        unfinished = _unfinished_runs(run_folder, label, batch)
        if not unfinished:
            continue
        run_folder.check_machine(Train.needs, "optimisers cannot be compared", workers=num_workers)
        with Bar(run_folder.console, label, "steps") as bar:
            train_on_ranks(
                unfinished,
                folder / "jobs" / f"{num_workers}-workers",
                code=code,
                on_progress=bar,
                on_loss=run_folder.say,
            )


def _unfinished_runs(
    run_folder: RunFolder, label: str, runs: Sequence[PlannedRun]
) -> list[PlannedRun]:
    """Return the runs without a result, and print how many runs there are and are done."""
    unfinished = [run for run in runs if run.result is None]
    num_finished = len(runs) - len(unfinished)
    finished_note = f", {num_finished} done before" if num_finished else ""
    run_folder.say(f"compare: {label}: {len(runs)} run(s){finished_note}")
    return unfinished
