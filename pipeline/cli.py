"""The command line: every command loads the config and makes one call. Exit codes are documented in the README."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape
from rich.table import Table

from ingestion.secrets import redact_words
from pipeline.config import Config, load_config
from pipeline.ending import Exit, err, guard, out, with_exit_code
from pipeline.errors import RunFolderError

if TYPE_CHECKING:
    from pipeline.store import Version

app = typer.Typer(
    name="hep-pipeline",
    help="ROOT files in, trained and evaluated event classifiers out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
#: Keys of manifests that `status --json` shows.
_OF_STAGES: Final = ("created", "seconds", "upstream", "code_version")
_OF_MODELS: Final = ("promoted", "train", "improvement", "code_version")
ConfigOption = Annotated[
    str,
    typer.Option("--config", "-c", help="A YAML file, or the name of a shipped config.", envvar="HEP_PIPELINE_CONFIG"),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Override a config value; may be given often."),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Run even if up to date.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="MPI ranks; sets train.workers, with --compare compare.workers.")
]
CompareOption = Annotated[
    str | None,
    typer.Option("--compare", metavar="NAME", help="Compare optimisers instead: thesis (its tables and figures)."),
]

ModelOption = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="[NAME=]PATH", help="Training folder or ONNX file; may be given often."),
]
InputsOption = Annotated[
    list[str] | None,
    typer.Option("--inputs", metavar="[CLASS=]GLOB", help="ROOT files instead of the test split; may be given often."),
]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="New folder of a result beside the run [run_dir/evaluations/...].")
]


@app.command()
def run(
    config: ConfigOption = "demo",
    overrides: SetOption = None,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> None:
    """Run all stages, as far as they are stale."""
    guard(partial(_run_stages, config, overrides, None, force=force), debug=debug)


@app.command()
def ingest(
    config: ConfigOption = "demo",
    overrides: SetOption = None,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> None:
    """ROOT files to events Parquet (Spark and uproot)."""
    guard(partial(_run_stages, config, overrides, ["ingest"], force=force), debug=debug)


@app.command()
def features(
    config: ConfigOption = "demo",
    overrides: SetOption = None,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> None:
    """Events to high- and low-level features, split and mixed (Spark)."""
    guard(partial(_run_stages, config, overrides, ["features"], force=force), debug=debug)


@app.command()
def gridsearch(
    config: ConfigOption = "demo",
    overrides: SetOption = None,
    if_wanted: Annotated[
        bool, typer.Option("--if-wanted", help="Only where model.hlf.from_gridsearch asks for it.")
    ] = False,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> None:
    """Try perceptrons on high-level features by cross-validation (Spark)."""

    def work() -> None:
        if if_wanted and not load_config(config, overrides or []).model.searched:
            out.print("gridsearch: not wanted (model.hlf.from_gridsearch is false)")
            return
        _run_stages(config, overrides, ["gridsearch"], force=force)

    guard(work, debug=debug)


@app.command()
def train(
    config: ConfigOption = "demo",
    workers: WorkersOption = None,
    compare: CompareOption = None,
    overrides: SetOption = None,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> None:
    """Train the network on one worker, or on several under mpirun; or compare optimisers."""
    if compare is not None:
        guard(partial(_compare, compare, config, overrides or [], workers, force=force), debug=debug)
        return
    extra = [] if workers is None else [f"train.workers={workers}"]
    guard(partial(_run_stages, config, [*(overrides or []), *extra], ["train"], force=force), debug=debug)


@app.command()
def evaluate(
    model: ModelOption = None,
    inputs: InputsOption = None,
    out: OutOption = None,
    config: ConfigOption = "demo",
    overrides: SetOption = None,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> None:
    """Predict the test split; metrics and plots. Or other models, or new ROOT files, beside the run."""
    if model or inputs or out:
        guard(partial(_evaluate_others, config, overrides or [], model or [], inputs or [], out), debug=debug)
        return
    guard(partial(_run_stages, config, overrides, ["evaluate"], force=force), debug=debug)


@app.command()
def export(
    config: ConfigOption = "demo",
    overrides: SetOption = None,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> None:
    """The trained networks as ONNX and as torch programs, checked and timed."""
    guard(partial(_run_stages, config, overrides, ["export"], force=force), debug=debug)


@app.command()
def report(
    config: ConfigOption = "demo",
    overrides: SetOption = None,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> None:
    """One self-contained HTML page of the whole run."""
    guard(partial(_run_stages, config, overrides, ["report"], force=force), debug=debug)


@app.command()
def promote(
    config: ConfigOption = "demo",
    overrides: SetOption = None,
    force: Annotated[bool, typer.Option("--force", help="Promote whatever the comparison says.")] = False,
    debug: DebugOption = False,
) -> None:
    """Put the trained networks in use, if they are better than those that are."""

    def work() -> None:
        from pipeline.promoting import Promoter

        for verdict in Promoter(load_config(config, overrides or []), err).promote(force=force):
            words = "promoted" if verdict.promoted else "not promoted"
            out.print(escape(f"{verdict.network}: {words}: {verdict.reason}"))

    guard(work, debug=debug)


@app.command()
def rollback(
    network: Annotated[str, typer.Argument(help="hlf, particles or inclusive.")],
    config: ConfigOption = "demo",
    overrides: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Put the model that was in use before back."""

    def work() -> None:
        from pipeline.promoting import Promoter

        withdrawn, current = Promoter(load_config(config, overrides or []), err).rollback(network)
        out.print(f"{network}: {current} is in use again instead of {withdrawn}")

    guard(work, debug=debug)


@app.command()
def track(config: ConfigOption = "demo", overrides: SetOption = None, debug: DebugOption = False) -> None:
    """Log the trained and evaluated networks to MLflow."""

    def work() -> None:
        from pipeline.tracking import Tracker

        for each in Tracker(load_config(config, overrides or []), err).track():
            words = "logged as" if each.is_new else "is there already as"
            out.print(escape(f"{each.network}: {words} run {each.run_id}"))

    guard(work, debug=debug)


@app.command()
def clean(
    keep: Annotated[int, typer.Option("--keep", min=1, help="Versions of each stage to keep.")] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    config: ConfigOption = "demo",
    overrides: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Remove old versions; those in use, and what they were made from, stay."""

    def work() -> None:
        from pipeline.cleaning import Cleaner

        found = Cleaner(load_config(config, overrides or []), err).clean(keep, dry_run=dry_run)
        for each in found:
            out.print(escape(f"{each.folder} ({each.freed_bytes / 1e6:,.1f} MB)"))
        total = sum(each.freed_bytes for each in found)
        words = "would be removed" if dry_run else "removed"
        out.print(f"{len(found)} versions {words}, {total / 1e6:,.1f} MB")

    guard(work, debug=debug)


@app.command("load-test")
def load_test(
    folder: Annotated[Path, typer.Argument(help="New folder for the files and their config.")],
    events: Annotated[int, typer.Option("--events", min=1, help="Events of each sample.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Of the angles.")] = 1,
    config: ConfigOption = "demo",
    overrides: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Make a load-test sample: any number of events, turned and mirrored copies of a config's own."""

    def work() -> None:
        from pipeline.load_test import make

        out.print(make(load_config(config, overrides or []), folder, events, seed=seed, console=err))

    guard(work, debug=debug)


@app.command()
def validate(config: ConfigOption = "demo", overrides: SetOption = None, debug: DebugOption = False) -> None:
    """Check the config, and that its input files are there."""

    def work() -> None:
        from ingestion.files import expand

        loaded = load_config(config, overrides or [])
        unmatched: list[str] = []
        sources = expand(loaded.samples, on_unmatched=unmatched.append)
        for sample in loaded.samples:
            files = sum(source.sample == sample.name for source in sources)
            out.print(f"{escape(sample.name)}: {files} files, class {escape(loaded.classes[sample.label])}")
        for words in unmatched:
            out.print(f"note: {words}", markup=False)
        out.print("the config is valid")

    guard(work, debug=debug)


@app.command()
def plan(
    config: ConfigOption = "demo",
    overrides: SetOption = None,
    accept: Annotated[bool, typer.Option("--accept", help="Declare what is there up to date, as it is.")] = False,
    debug: DebugOption = False,
) -> None:
    """Say what would run, and why."""

    def work() -> None:
        from pipeline.runner import Runner, State

        runner = Runner(load_config(config, overrides or []), err)
        if accept:
            accepted = runner.accept()
            out.print(f"accepted as they are: {', '.join(accepted)}" if accepted else "nothing was stale")
            return
        for each in runner.plan():
            will = "would run" if each.state is not State.FRESH else ""
            out.print(f"{each.stage.name:<12}{each.state:<15}{will}")
            for reason in each.reasons:
                out.print(f"            - {escape(reason)}")

    guard(work, debug=debug)


@app.command()
def status(
    config: ConfigOption = "demo",
    overrides: SetOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Say what is there."""

    def work() -> None:
        from pipeline.registry import Registry
        from pipeline.runner import STAGES, Runner

        loaded = load_config(config, overrides or [])
        runner = Runner(loaded, err)
        versions = {stage.name: runner.store(stage).current() for stage in STAGES}
        in_use = {each.stage: each.current() for each in Registry.all_of(loaded.run_dir)}
        if as_json:
            found: dict[str, Any] = {name: _brief(each, _OF_STAGES) for name, each in versions.items()}
            found["in_use"] = {name: _brief(each, _OF_MODELS) for name, each in in_use.items()}
            out.print_json(json.dumps(found))
            return
        table = Table("stage", "version", "made", "seconds", title=escape(str(loaded.run_dir)), title_justify="left")
        for name, each in versions.items():
            row = [each.name, each.manifest["created"], f"{each.manifest['seconds']:.1f}"] if each else ["-", "-", "-"]
            table.add_row(name, *row)
        for name, each in in_use.items():
            row = [each.name, each.manifest["promoted"]] if each else ["-", "-"]
            table.add_row(f"{name} in use", *row, "-")
        out.print(table)

    guard(work, debug=debug)


@app.command()
def doctor(config: ConfigOption = "demo", overrides: SetOption = None, debug: DebugOption = False) -> None:
    """Say what is wrong with this machine, and how to mend it."""

    def work() -> None:
        from pipeline.doctor import Need, Severity, examine, read_machine, render

        loaded = load_config(config, overrides or [])
        findings = examine(
            read_machine(run_dir=loaded.run_dir),
            list(Need),
            workers=loaded.train.workers,
            spark_master=loaded.spark.master,
            launcher=loaded.train.launcher,
            launcher_args=loaded.train.launcher_args,
        )
        is_bad = any(finding.severity is Severity.ERROR for finding in findings)
        out.print(escape(render(findings)))
        if not is_bad:
            is_bad = _try_training(loaded)
        if is_bad:
            raise typer.Exit(Exit.USER_ERROR)

    guard(work, debug=debug)


def _try_training(config: Config) -> bool:
    """Start the ranks for a short test; whether something is wrong."""
    from training.errors import LaunchError
    from training.probing import describe_devices, probe_mpi

    out.print(escape(describe_devices()), highlight=False)
    if config.train.workers == 1:
        return False
    try:
        out.print(escape(probe_mpi(config.train)), highlight=False)
    except LaunchError as error:
        out.print(escape(f"error: {error}"), highlight=False)
        return True
    return False


def main() -> None:
    """Entry point of `python -m pipeline` and `hep-pipeline`."""
    with_exit_code(app)


def _run_stages(config: str, overrides: list[str] | None, names: list[str] | None, *, force: bool) -> None:
    """Run the named stages; None: all that the config wants."""
    from pipeline.runner import Runner

    runner = Runner(load_config(config, overrides or []), err)
    chosen = names or [stage.name for stage in runner.wanted()]
    runner.run(chosen, force=force)
    if "report" in chosen:
        err.print(escape(f"report: {_report_path(runner.config.run_dir)}"))


def _evaluate_others(config: str, overrides: list[str], models: list[str], inputs: list[str], out: Path | None) -> None:
    from pipeline.evaluating import Evaluator

    folder = Evaluator(load_config(config, overrides), err).evaluate(models, inputs, out)
    err.print(escape(f"evaluation: {folder}"))


def _compare(name: str, config: str, overrides: list[str], workers: int | None, *, force: bool) -> None:
    from pipeline.comparing import Comparer, refuse_unknown

    refuse_unknown(name)
    changes = overrides if workers is None else [*overrides, f"compare.workers={workers}"]
    words = ["python -m pipeline train --compare", name, "--config", config]
    command = " ".join([*words, *(f"--set {shlex.quote(each)}" for each in redact_words(changes))])
    page = Comparer(load_config(config, changes), err, command=command).compare(name, force=force)
    err.print(escape(f"comparison: {page}"))


def _report_path(run_dir: Path) -> Path:
    from pipeline.store import StageStore

    current = StageStore(run_dir, "report").current()
    if current is None:
        raise RunFolderError(f"there is no report in {run_dir} although its stage has run")
    return current.folder / "report.html"


def _brief(version: Version | None, keys: Sequence[str]) -> dict[str, Any] | None:
    if version is None:
        return None
    return {"version": version.name, "folder": str(version.folder), **{key: version.manifest[key] for key in keys}}
