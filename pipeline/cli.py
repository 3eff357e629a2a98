"""The commands: each declares its options and makes one call. Exit codes: docs/operations.md."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hep_core.extensions import COMMANDS, load_extensions
from pipeline.command_line import (
    Asked,
    ExitCodeOption,
    ForceOption,
    JsonOption,
    app,
    command,
    end_command,
    refuse_together,
    run_stages,
    say,
    say_json,
    stage_command,
)
from pipeline.terminal.exit_codes import Exit, err, out, with_exit_code


@command
def run(
    asked: Asked,
    until: Annotated[
        str | None, typer.Option("--until", metavar="STAGE", help="The last stage to run.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would run, and why (like `plan`).")
    ] = False,
    force: ForceOption = False,
) -> None:
    """Run all stages that are stale."""
    if dry_run:
        from pipeline.commands.plan import lines, plan

        say(*lines(plan(asked.run_folder(), until=until, force=force)))
    else:
        from pipeline.commands.run import run

        run(asked.run_folder(), until=until, force=force)


stage_command("ingest", "ROOT files to events Parquet (Spark and uproot).")
stage_command("features", "Events to high- and low-level features, split and mixed (Spark).")
stage_command(
    "gridsearch",
    "Try perceptrons on high-level features by cross-validation (Spark).",
    is_optional=True,
)


@command
def train(
    asked: Asked,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="MPI ranks; sets train.workers.")
    ] = None,
    force: ForceOption = False,
    exit_code: ExitCodeOption = False,
) -> None:
    """Train the network on one worker, or on several under mpirun."""
    run_stages(asked.plus("train.workers", workers), "train", force=force, exit_code=exit_code)


stage_command("evaluate", "Predict the test split; metrics and plots.")
stage_command("export", "The trained networks as ONNX, checked and timed.")
stage_command("report", "One self-contained HTML page of the whole run.")


@command
def evaluate_files(
    asked: Asked,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="[NAME=]PATH",
            help="Training folder or ONNX file; may be given often.",
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--inputs",
            metavar="SAMPLE=GLOB",
            help="ROOT files of a sample or class, not the test split; may be repeated.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="New folder; else a number in run_dir/evaluations.")
    ] = None,
) -> None:
    """Evaluate other models, or new ROOT files, beside the run."""
    from pipeline.commands.evaluate_files import evaluate_files

    folder = evaluate_files(asked.run_folder(), model or [], inputs or [], out)
    err.print(f"evaluation: {folder}", markup=False)


@partial(command, without=["wait"])
def predict(
    asked: Asked,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="ROOT files, with or without labels: paths, globs, URLs."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="A new folder for one file of scores per input file.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="PATH",
            help="Training folder or ONNX file; else the model in use of run_dir.",
        ),
    ] = None,
    network: Annotated[
        str | None, typer.Option("--network", help="Which of several models in use.")
    ] = None,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Write Parquet, not friend trees of ROOT.")
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="BRANCH", help="A branch to copy; may be repeated."),
    ] = None,
    throughput: Annotated[
        bool, typer.Option("--throughput", help="Print events per second.")
    ] = False,
) -> None:
    """Score ROOT files: one row for each entry, in its order."""
    from pipeline.commands.predict import predict

    refuse_together(model=model, network=network)
    done = predict(
        asked.run_folder(),
        inputs,
        out,
        model=model,
        network=network,
        parquet=parquet,
        keep=keep or [],
    )
    for each in done.files:
        say(f"{each.path}: {each.scored} of {each.entries} events have scores{each.reasons}")
    if throughput:
        say(
            f"{done.events_per_second:,.0f} events/s, from the first file opened to the last one written"
        )


@command
def promote(
    asked: Asked,
    force: Annotated[
        bool, typer.Option("--force", help="Promote independent of the comparison.")
    ] = False,
    exit_code: ExitCodeOption = False,
) -> None:
    """Put the trained networks in use, if they are better than those in use."""
    from pipeline.commands.promote import promote

    did = False
    for verdict in promote(asked.run_folder(), force=force):
        say(
            f"{verdict.network}: {'promoted' if verdict.promoted else 'not promoted'}: {verdict.reason}"
        )
        did = did or verdict.promoted
    end_command(did=did, exit_code=exit_code)


@command
def rollback(
    asked: Asked,
    network: Annotated[str, typer.Argument(help="Name of a network, as in model.names.")],
) -> None:
    """Put the previous model back in use."""
    from pipeline.commands.promote import rollback

    withdrawn, current = rollback(asked.run_folder(), network)
    say(f"{network}: {current} is in use again instead of {withdrawn}")


@command
def track(asked: Asked) -> None:
    """Log the trained and evaluated networks to MLflow."""
    from pipeline.commands.track import track

    for each in track(asked.run_folder()):
        say(
            f"{each.network}: {'logged as' if each.is_new else 'is there already as'} run {each.run_id}"
        )


@command
def clean(
    asked: Asked,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Versions of each stage to keep.")] = 3,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
) -> None:
    """Remove old versions; the versions in use, and those they were made from, stay."""
    from pipeline.commands.clean import clean

    found = clean(asked.run_folder(), keep, dry_run=dry_run)
    say(*(f"{each.folder} ({each.freed_bytes / 1e6:,.1f} MB)" for each in found))
    total = sum(each.freed_bytes for each in found)
    say(
        f"{len(found)} versions {'would be removed' if dry_run else 'removed'}, {total / 1e6:,.1f} MB"
    )


@partial(command, without=["wait"])
def config(asked: Asked, as_json: JsonOption = False) -> None:
    """Show every value of the config, and where it comes from: the default, the file or `--set`."""
    from pipeline.commands.config import as_json as in_json
    from pipeline.commands.config import lines
    from pipeline.config import load

    loaded = load(asked.config, asked.overrides)
    if as_json:
        say_json(in_json(loaded))
    else:
        say(*lines(loaded))


@partial(command, without=["wait"])
def validate(asked: Asked) -> None:
    """Check the config and its input files: paths, trees, branches."""
    from pipeline.commands.validate import validate

    run_folder = asked.run_folder()
    for line in validate(run_folder.config, run_folder.console):
        say(line)


@command
def plan(
    asked: Asked,
    accept: Annotated[
        bool, typer.Option("--accept", help="Declare all existing versions up to date.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what would run, and why."""
    from pipeline.commands.plan import accept as accept_all
    from pipeline.commands.plan import as_json as in_json
    from pipeline.commands.plan import lines, plan

    refuse_together(accept=accept, json=as_json)
    if accept:
        say(accept_all(asked.run_folder()))
    elif as_json:
        say_json(in_json(plan(asked.run_folder())))
    else:
        say(*lines(plan(asked.run_folder())))


@partial(command, without=["wait"])
def status(
    asked: Asked,
    as_json: JsonOption = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file and compare it with its digest.")
    ] = False,
) -> None:
    """Show the versions and models in use."""
    from pipeline.commands.status import damages, status, table_of
    from pipeline.commands.status import verify as find_changed

    refuse_together(verify=verify, json=as_json)
    run_folder = asked.run_folder()
    content = status(run_folder)
    problems = damages(content)
    if verify:
        problems += [f"gone or damaged: {path}" for path in find_changed(run_folder)]
        say(*problems or ["every file is unchanged since it was written"])
    elif as_json:
        say_json(content)
    else:
        out.print(table_of(run_folder, content))
        say(*problems)
    if problems:
        raise typer.Exit(Exit.USER_ERROR)


@partial(command, without=["wait"])
def doctor(asked: Asked, as_json: JsonOption = False) -> None:
    """Say what is wrong with this machine, and how to fix it."""
    from pipeline.commands.doctor import doctor

    found = doctor(asked.run_folder(), (lambda _: None) if as_json else say)
    if as_json:
        say_json(found.as_json())
    if not found.is_well:
        raise typer.Exit(Exit.USER_ERROR)


load_extensions(COMMANDS)


def main() -> None:
    """Entry point of `python -m pipeline` and `hep-pipeline`."""
    with_exit_code(app)
