"""`compare --study NAME`: connects `hep_studies` to run folder, console and provenance."""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import psutil
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from rich import box
from rich.table import Table

from features.dataset import FeatureDataset
from features.schema import SPLITS
from hep_core.allocation import usable_cores
from hep_core.atomic_files import write_atomically
from hep_core.paths import expand_path
from hep_studies.figures import draw_all
from hep_studies.judging import judge
from hep_studies.measures import measure_of
from hep_studies.pages import counted, notes, render, summed_up
from hep_studies.plan import PlannedRun, Subject, digest_of, digest_of_study, planned_runs
from hep_studies.run_in_simulator import simulate_all
from hep_studies.run_on_ranks import measure_all, num_steps
from hep_studies.run_result import weights_of_test
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.study import FOLDER, StudySettings, form_of
from hep_studies.study_result import PACKED, StudyResult, pack, plain, read
from hep_studies.time_checks import check_times
from models.evaluation.style import PlotLabels
from models.networks.registry import NETWORKS
from pipeline.configuration.mistakes import explain
from pipeline.configuration.paths import locate_paths
from pipeline.configuration.yaml_text import read_mapping
from pipeline.errors import USER_ERRORS, ConfigError, nearest
from pipeline.reporting.origin import plot_labels
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.runs.code_meaning import code_digests
from pipeline.runs.outputs import content_digest
from pipeline.runs.provenance import LOCAL_CHANGES, code_version, now, package_versions
from pipeline.runs.state_files import read_state
from pipeline.stages.train import Train, modules_of_method
from pipeline.terminal.exit_codes import stop_if_requested
from pipeline.terminal.grid import Grid
from pipeline.terminal.progress import Bar
from training.errors import IdleSettingError, StudyError
from training.settings import TrainSettings
from training.threads import use_threads
from training.workloads.hep_settings import HepSettings

#: Number of busy cores.
_LOAD: Final = TypeAdapter(Annotated[float, Field(ge=0, allow_inf_nan=False)])
_RESULT: Final = "result.json"
_FIGURES: Final = "figures"
_PAGE: Final = "page.md"
#: Its table, for the report of the run.
_TABLE: Final = "table.json"
_TIMING: Final = "timing"
_PUBLIC: Final = "the public files"
#: Files and folders of a study, which `--force` removes.
_WRITTEN: Final = ("runs", _TIMING, "jobs", _FIGURES, _RESULT, _PAGE, _TABLE)
#: What the check of the times depends on.
_CHECK: Final = ("training.launching.message_probe", "hep_studies.time_checks")
#: For how long the processors are watched before times are measured [s].
_LOOK_SECONDS: Final = 3.0
FORMS: Final = ("small", "full")
_SECTIONS: Final[dict[str, type[BaseModel]]] = {
    each.__name__: each for each in (TrainSettings, ClusterSettings)
}


class Study(NamedTuple):
    """A study to make."""

    name: str
    """That of its file; the full form and runs on MPI ranks have their own, with that behind it."""
    form: str
    settings: StudySettings


@cache
def shipped() -> dict[str, Path]:
    """The studies that come with the code, by name; tables and figures of a study are further names of it."""
    found = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
    return found | {
        name: path for path in found.values() for name in read_mapping(path).get("shows") or {}
    }


def read_study(name: str, form: str, changes: Mapping[str, Any] | None = None) -> Study:
    """A study by the name of a shipped one, of a table or figure of it, or by the path of a file.

    `form`: `small` or `full`. `changes`: values that differ from those of the file.

    Raises:
        ConfigError: There is no such study, or its file has mistakes.
    """
    path, changes = shipped().get(name) or Path(expand_path(name)), changes or {}
    if not path.is_file():
        words = "file." if path.suffix else f"study.{nearest(name, shipped())}"
        raise ConfigError(
            f"compare --study {name}: there is no such {words} `compare --list` shows the shipped studies."
        )
    if form not in FORMS:
        raise ConfigError(f"compare --form {form}: there is no such form.{nearest(form, FORMS)}")
    given = read_mapping(path)
    content = form_of(given, form, changes)
    locate_paths({"compare": content}, "", str(path))
    try:
        settings = StudySettings.model_validate(content)
    except ValidationError as cause:
        place = f"{path}{' with the section compare of the config' if changes else ''}"
        raise ConfigError(explain(cause, StudySettings, place=place)) from None
    for where, method, values in _combinations(settings):
        try:
            workers = settings.train_settings(method, values, 1).workers
            slow = min(settings.cluster_settings(values).slow_ranks, default=0)
        except ValidationError as cause:
            raise ConfigError(
                explain(cause, _SECTIONS[cause.title], place=f"{path}: {where}")
            ) from None
        if slow >= workers > 1:
            raise ConfigError(
                f"{path}: {where}: there is no slow rank {slow} among {workers} workers."
            )
    train = changes.get("train", {})
    if replaced := [
        key for key in train if all(settings.replaces(each, key) for each in settings.methods)
    ]:
        raise ConfigError(
            f"compare.train.{', '.join(replaced)} has no effect on {path}: every method sets or varies it."
        )
    by_mpi = settings.execution == "mpi"
    layers = [given, (given.get("forms") or {}).get(form) or {}]
    is_idle = any(each.get("cluster") and each.get("execution") == "mpi" for each in layers)
    if by_mpi and (changes.get("cluster") or is_idle):
        raise ConfigError(
            f"{path}: cluster has no effect beside execution: mpi, whose workers are ranks here."
        )
    return Study(
        "-".join([path.stem, *[form] * (form != FORMS[0]), *["mpi"] * by_mpi]), form, settings
    )


def _combinations(study: StudySettings) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The methods with each of their values of varied keys, in words before them."""
    for method in study.methods:
        for values in study.combinations(method):
            yield (
                ", ".join([method, *(f"{key} {value}" for key, value in values.items())]),
                method,
                values,
            )


def list_studies() -> Table:
    """All shipped studies: name, source and what they show, expected time of both forms."""
    times = [f"{form}, min" for form in FORMS]
    table = Table("study", "shows", *times, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in _names():
        small, full = (read_study(name, form).settings for form in FORMS)
        shows = f"{small.source}: {', '.join(small.shows.values())}"
        table.add_row(name, shows, f"{small.minutes:g}", f"{full.minutes:g}")
    table.columns[0].no_wrap = True
    return table


def _names() -> list[str]:
    """The shipped studies, each once."""
    return list(dict.fromkeys(path.stem for path in shipped().values()))


def make_all(make: Callable[[str], None], say: Callable[[str], None]) -> None:
    """Make every shipped study by its name, also after one that fails; an interrupt ends it at once.

    Raises:
        StudyError: Studies fail; the message names them.
    """
    names, failed = _names(), []
    for number, name in enumerate(names, 1):
        say(f"compare: study {name}, {number} of {len(names)}")
        try:
            make(name)
        except USER_ERRORS as error:
            stop_if_requested()
            say(f"compare: study {name} failed: {error}")
            failed.append(name)
    if failed:
        raise StudyError(
            f"compare: {len(failed)} of {len(names)} studies failed, as said above: {', '.join(failed)}."
        )


def compare(
    run_folder: RunFolder,
    study: Study,
    *,
    command: str,
    force: bool = False,
    publish: Path | None = None,
) -> Path:
    """Make the missing runs of a study, and its tables, figures and page, in `<run_dir>/compare/<name>/`.

    `command`: the command line, for the page, which is returned. `force`: make all runs again. `publish`: folder for a
    copy of page, figures and packed result, such as `docs/studies`.

    Raises:
        MissingInputError: There are no features yet.
        TrainingError: A run fails; the message names it.
    """
    use_threads(run_folder.config.train.threads)
    if publish is not None:
        _refuse_local_changes([code_version()])
    with run_folder.locked("compare"):
        folder = run_folder.config.run_dir / "compare" / study.name
        if force:
            _remove_written(folder)
        folder.mkdir(parents=True, exist_ok=True)
        result = _result(run_folder, study, folder, command)
        if publish is not None:
            _refuse_local_changes([run.made_with for run in result.runs])
        table = table_of(result)
        page = _write(run_folder, result, table, folder, publish)
        run_folder.console.print(table)
        judged = judge(result)
        run_folder.results.add(
            f"study {study.name}: {len(result.runs)} runs, claims: {counted(judged) or 'none'}"
        )
        for words in [
            *(f"{each.verdict}: {each.claim.says}" for each in judged),
            *notes(result, judged),
        ]:
            run_folder.say(f"  {words}")
        return page


def _refuse_local_changes(versions: Sequence[str]) -> None:
    """Refuse to publish what code made that no commit has."""
    found = sorted({version for version in versions if version.endswith(LOCAL_CHANGES)})
    if found:
        raise StudyError(
            f"compare --publish: {'; '.join(found)}: nobody can make these runs again. Commit the changes, and compare "
            f"with --force the runs that were made with them; or leave out --publish."
        )


def _remove_written(folder: Path) -> None:
    for path in (folder / name for name in _WRITTEN):
        if path.is_dir():
            # This refuses a symbolic link.
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _result(run_folder: RunFolder, study: Study, folder: Path, command: str) -> StudyResult:
    """The result of all runs; those that are not done are made."""
    config, settings = run_folder.config, study.settings
    if config.train.launcher.startswith("spark"):
        raise ConfigError(
            f"compare: train.launcher is {config.train.launcher}, which holds executors of a Spark cluster for one "
            f"training. Add --set train.launcher=mpirun (or srun)."
        )
    subject, data = _subject(run_folder, study)
    _refuse_idle(settings)
    cores, code = usable_cores(), code_version()
    runs = planned_runs(settings, subject, config.train, folder, code_of=code_of)
    digest = digest_of_study(settings, runs)
    busy, checks = _busy_cores(runs, folder / _TIMING / "load.json"), []
    if settings.execution == "simulate":
        run_folder.say(f"compare: {study.name}: check of the simulated times")
        checks = check_times(runs, folder / _TIMING, cores=cores, code=_digest_of_code(_CHECK))
    with suppress(StudyError):
        if (found := read(folder / _RESULT)).digest == digest:
            run_folder.say("compare: all runs are done; redrawing")
            return replace(found, study=settings, checks=checks)
    _make(run_folder, study, runs, folder, code)
    made = {
        # Where the config lies on this machine is of no use on a page.
        "command": re.sub(r"(?<=[ =])/\S*/", "", command),
        "created": now(),
        "machine": {"cpu": _cpu_name(), "cores": cores, "load": busy},
        "packages": package_versions(),
    }
    results = [result for result in (run.result for run in runs) if result is not None]
    weights = "" if settings.times_only else weights_of_test(subject.settings.open())
    made_now = StudyResult(
        study.name, study.form, digest, settings, made, data, checks, results, weights
    )
    write_atomically(folder / _RESULT, plain(made_now))
    return made_now


def _refuse_idle(study: StudySettings) -> None:
    """Refuse a study with runs in which one worker does what only several can, before any begins."""
    found = []
    for where, method, values in _combinations(study):
        try:
            study.train_settings(method, values, 1).refuse_idle()
        except IdleSettingError as idle:
            found.append(f"  {where}: {idle}")
    if found:
        raise ConfigError(
            "\n".join(["compare: in these runs something that is set has no effect:", *found])
        )


def code_of(subject: Subject, train: TrainSettings, is_simulated: bool) -> str:
    """Digest of the meaning of the code of a run: other methods, networks and the words of the page are none of it."""
    modules = [
        f"hep_studies.run_{'in_simulator' if is_simulated else 'on_ranks'}",
        *modules_of_method(train),
    ]
    modules += [] if is_simulated else ["training.launching.rank_process"]
    settings = subject.settings
    modules += [
        type(settings).__module__,
        settings.network.module if isinstance(settings, HepSettings) else "",
    ]
    return _digest_of_code(tuple(filter(None, modules)))


@cache
def _digest_of_code(modules: tuple[str, ...]) -> str:
    return digest_of(code_digests(modules))


def _busy_cores(runs: Sequence[PlannedRun], path: Path) -> float:
    """Number of busy cores just before runs that measure times; of several attempts, the highest.

    The load average would also count what was done before: with `STUDY=all`, the study before.
    """
    remedy = "Remove it; the load is measured again."
    before = read_state(path, _LOAD, remedy=remedy) if path.exists() else 0.0
    if path.exists() and all(run.result is not None for run in runs):
        return before
    found = max(before, psutil.cpu_percent(_LOOK_SECONDS) / 100 * (psutil.cpu_count() or 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found), encoding="utf-8")
    return found


def _subject(run_folder: RunFolder, study: Study) -> tuple[Subject, dict[str, Any]]:
    """What the study trains, and a description of its rows."""
    config, chosen = run_folder.config, study.settings.workload
    if not isinstance(chosen, str):
        opened = chosen.open()
        counts = {split: [sum(opened.group_rows(split))] for split in SPLITS}
        source = {"surface": "Beale's function", "mnist": _PUBLIC, "cifar10": _PUBLIC}.get(
            chosen.name, chosen.name
        )
        if chosen.meaning.get("digits"):
            source = "the digits of scikit-learn, enlarged"
        return Subject(chosen), {
            "version": chosen.name,
            "classes": [],
            "sample_note": source,
            "counts": counts,
        }
    if chosen not in NETWORKS:
        raise ConfigError(
            f"study {study.name}: there is no workload '{chosen}'.{nearest(chosen, NETWORKS)}"
        )
    upstream = run_folder.upstream(Train(), command="compare")
    Runner(run_folder).say_what_is_stale(Train(), upstream)
    features = upstream["features"]
    dataset = FeatureDataset.load(features.folder)
    settings = HepSettings(folder=features.folder.absolute(), network=config.model.of(chosen))
    about = {
        "version": features.name,
        "classes": dataset.classes,
        "sample_note": _labels(run_folder).sample_note,
    }
    counts = {split: [*found, sum(found)] for split, found in dataset.counts.items()}
    digest = content_digest(
        features.files, {}, ["dataset.json", "scaler.json", *(f"{split}/*" for split in SPLITS)]
    )
    return Subject(settings, digest), about | {"counts": counts, "digest": digest}


def _labels(run_folder: RunFolder) -> PlotLabels:
    """Words on the plots of the events of the run folder."""
    ingested = run_folder.store("ingest").current()
    return plot_labels(
        run_folder.config.model_dump(mode="json"), ingested.manifest["inputs"] if ingested else ()
    )


def _make(
    run_folder: RunFolder, study: Study, runs: Sequence[PlannedRun], folder: Path, code: str
) -> None:
    """Make the runs that are not done; MPI runs of as many workers share their ranks, which start only once."""
    by_mpi = study.settings.execution == "mpi"
    for run in runs if by_mpi else ():
        # Impossible runs are refused before any other.
        num_steps(run)
    for workers in sorted({run.train.workers * by_mpi for run in runs}):
        of_these = [run for run in runs if run.train.workers * by_mpi == workers]
        left = [run for run in of_these if run.result is None]
        words = f"train with {workers} worker(s)" if by_mpi else study.name
        before = f", {len(of_these) - len(left)} done before" if len(left) < len(of_these) else ""
        run_folder.say(f"compare: {words}: {len(of_these)} run(s){before}")
        if left and by_mpi:
            run_folder.refuse_unfit_machine(
                Train.needs, "optimisers cannot be compared", workers=workers
            )
            jobs = folder / "jobs" / f"{workers}-workers"
            with Bar(run_folder.console, words, "steps") as bar:
                measure_all(left, jobs, code=code, on_progress=bar, on_loss=run_folder.say)
        elif left:
            with Bar(run_folder.console, "simulate", "runs") as bar:
                simulate_all(left, cores=usable_cores(), code=code, on_progress=bar)


def _write(
    run_folder: RunFolder, result: StudyResult, table: Grid, folder: Path, publish: Path | None
) -> Path:
    """Draw the figures and write the page; also into the folder to publish in. Returns the last page."""
    figures, page = folder / _FIGURES, folder / _PAGE
    has_events = isinstance(result.study.workload, str)
    draw_all(
        result,
        _labels(run_folder) if has_events else PlotLabels("", result.data["sample_note"], None),
        figures,
    )
    page.write_text(render(result, folder=_FIGURES), encoding="utf-8")
    heads = ["Method", *(measure_of(name).words for name in dict.fromkeys(result.study.compared))]
    for_report = {
        "title": result.study.title,
        "heads": heads,
        "rows": [row[: len(heads)] for row in table.rows[1:]],
        "workers": "virtual workers of the simulator" if result.is_simulated else "MPI ranks",
        "events": result.data["version"],
        "notes": [*notes(result), *([f"{result.warning.capitalize()}."] if result.warning else [])],
    }
    write_atomically(folder / _TABLE, for_report)
    if publish is not None:
        (publish / result.name).mkdir(parents=True, exist_ok=True)
        for figure in result.study.figures:
            shutil.copy(figures / f"{figure.name}.png", publish / result.name)
        (publish / result.name / PACKED).write_bytes(pack(result))
        page = publish / f"{result.name}.md"
        page.write_text(render(result, folder=result.name), encoding="utf-8")
    return page


def _cpu_name() -> str:
    """Name of the processor, or of its architecture."""
    about = Path("/proc/cpuinfo")
    named = re.search(
        r"^model name\s*: (.+)$", about.read_text() if about.exists() else "", re.MULTILINE
    )
    return named[1] if named else platform.machine()


def table_of(result: StudyResult) -> Grid:
    """The measures that the study compares, and those of its tables, for the terminal."""
    of_tables = [
        name for table in result.study.tables if table.over is None for name in table.measures
    ]
    names = list(dict.fromkeys([*result.study.compared, *of_tables]))
    table = Grid("method", *names, title=result.study.title)
    for cell in result.cells():
        table.add_row(result.title(cell), *(summed_up(result, cell, name) for name in names))
    return table
