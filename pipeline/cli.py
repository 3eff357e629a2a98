"""The commands: each declares its options and makes one call. Exit codes: docs/operations.md."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hep_core.extensions import COMMANDS, load_extensions
from pipeline.command_line import (
    CliOptions,
    ExitCodeOption,
    ForceOption,
    JsonOption,
    app,
    command,
    end_command,
    print_json,
    print_lines,
    print_outcome,
    require_at_most_one,
    run_stages,
    stage_command,
)
from pipeline.terminal.exit_codes import Exit, err, out, with_exit_code


@command
def run(
    options: CliOptions,
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

        print_lines(*lines(plan(options.run_folder(), until=until, force=force)))
    else:
        from pipeline.commands.run import run

        run(options.run_folder(), until=until, force=force)


stage_command("ingest", "ROOT files to events Parquet (Spark and uproot).")
stage_command("features", "Events to high- and low-level features, split and mixed (Spark).")
stage_command(
    "gridsearch",
    "Try perceptrons on high-level features by cross-validation (Spark).",
    is_optional=True,
)


@command
def train(
    options: CliOptions,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="MPI ranks; sets train.workers.")
    ] = None,
    force: ForceOption = False,
    exit_code: ExitCodeOption = False,
) -> None:
    """Train the network on one worker, or on several under mpirun."""
    run_stages(
        options.with_override("train.workers", workers), "train", force=force, exit_code=exit_code
    )


stage_command("evaluate", "Predict the test split; metrics and plots.")
stage_command("export", "The trained networks as ONNX, checked and timed.")
stage_command("report", "One self-contained HTML page of the whole run.")


@command
def evaluate_files(
    options: CliOptions,
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

    folder = evaluate_files(options.run_folder(), model or [], inputs or [], out)
    err.print(f"evaluation: {folder}", markup=False)


@partial(command, without=["wait"])
def predict(
    options: CliOptions,
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

    require_at_most_one(model=model, network=network)
    scores = predict(
        options.run_folder(),
        inputs,
        out,
        model=model,
        network=network,
        parquet=parquet,
        keep=keep or [],
    )
    for file in scores.files:
        print_outcome(
            f"{file.path}: {file.scored} of {file.entries} events have scores{file.reasons}"
        )
    if throughput:
        print_outcome(
            f"{scores.events_per_second:,.0f} events/s, from the first file opened to the last one "
            "written"
        )


@command
def promote(
    options: CliOptions,
    force: Annotated[
        bool, typer.Option("--force", help="Promote independent of the comparison.")
    ] = False,
    exit_code: ExitCodeOption = False,
) -> None:
    """Put the trained networks in use, if they are better than those in use."""
    from pipeline.commands.promote import promote

    has_promoted = False
    for outcome in promote(options.run_folder(), force=force):
        decision = "promoted" if outcome.promoted else "not promoted"
        print_outcome(f"{outcome.network}: {decision}: {outcome.reason}")
        has_promoted |= outcome.promoted
    end_command(did=has_promoted, exit_code=exit_code)


@command
def rollback(
    options: CliOptions,
    network: Annotated[str, typer.Argument(help="Name of a network, as in model.names.")],
) -> None:
    """Put the previous model back in use."""
    from pipeline.commands.promote import rollback

    withdrawn, current = rollback(options.run_folder(), network)
    print_outcome(f"{network}: {current} is in use again instead of {withdrawn}")


@command
def track(options: CliOptions) -> None:
    """Log the trained and evaluated networks to MLflow."""
    from pipeline.commands.track import track

    for tracked in track(options.run_folder()):
        state = "logged as" if tracked.is_new else "is there already as"
        print_outcome(f"{tracked.network}: {state} run {tracked.run_id}")


@command
def clean(
    options: CliOptions,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Versions of each stage to keep.")] = 3,
    keep_unfinished: Annotated[
        bool, typer.Option("--keep-unfinished", help="Keep interrupted work that can continue.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
) -> None:
    """Remove old versions; the versions in use, and those they were made from, stay."""
    from pipeline.commands.clean import clean

    removed = clean(options.run_folder(), keep, keep_unfinished=keep_unfinished, dry_run=dry_run)
    print_removed = print_lines if dry_run else print_outcome
    total_megabytes = 0.0
    for version in removed:
        megabytes = version.freed_bytes / 1e6
        total_megabytes += megabytes
        print_removed(f"{version.folder} ({megabytes:,.1f} MB)")
    outcome = "would be removed" if dry_run else "removed"
    print_removed(f"{len(removed)} versions {outcome}, {total_megabytes:,.1f} MB")


@partial(command, without=["wait"])
def config(options: CliOptions, as_json: JsonOption = False) -> None:
    """Show every value of the config, and where it comes from: the default, the file or `--set`."""
    from pipeline.commands.config import lines, values_with_sources
    from pipeline.config import load

    loaded = load(options.config, options.overrides)
    if as_json:
        print_json(values_with_sources(loaded))
    else:
        print_lines(*lines(loaded))


@partial(command, without=["wait"])
def validate(options: CliOptions) -> None:
    """Check the config and its input files: paths, trees, branches."""
    from pipeline.commands.validate import validate

    run_folder = options.run_folder()
    for line in validate(run_folder.config, run_folder.console):
        print_lines(line)


@command
def plan(
    options: CliOptions,
    accept: Annotated[
        bool, typer.Option("--accept", help="Declare all existing versions up to date.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what would run, and why."""
    from pipeline.commands.plan import accept_versions, lines, plan, plan_as_json

    require_at_most_one(accept=accept, json=as_json)
    run_folder = options.run_folder()
    if accept:
        print_outcome(accept_versions(run_folder))
    elif as_json:
        print_json(plan_as_json(run_folder, plan(run_folder)))
    else:
        print_lines(*lines(plan(run_folder)))


@partial(command, without=["wait"])
def status(
    options: CliOptions,
    as_json: JsonOption = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file and compare it with its digest.")
    ] = False,
) -> None:
    """Show the versions and models in use."""
    from pipeline.commands.status import changed_cache, damages, status, status_table

    run_folder = options.run_folder()
    state = status(run_folder, reads_all=verify)
    problems = damages(state, all_files=verify)
    note = changed_cache(run_folder) if verify else ""
    if as_json:
        print_json(state.as_json())
    elif verify:
        problems_and_note = [*problems, note] if note else problems
        print_lines(*problems_and_note or ["every file is unchanged since it was written"])
    else:
        out.print(status_table(run_folder, state))
        print_lines(*problems)
    if problems:
        raise typer.Exit(Exit.USER_ERROR)


@partial(command, without=["wait"])
def doctor(options: CliOptions, as_json: JsonOption = False) -> None:
    """Say what is wrong with this machine, and how to fix it."""
    from pipeline.commands.doctor import doctor

    if as_json:
        diagnosis = doctor(options.run_folder(), on_line=lambda _: None)
        print_json(diagnosis.as_json())
    else:
        diagnosis = doctor(options.run_folder(), on_line=print_lines)
    if not diagnosis.is_well:
        raise typer.Exit(Exit.USER_ERROR)


# Packages that are installed beside ours may add commands by entry points.
load_extensions(COMMANDS)


def main() -> None:
    """Entry point of `python -m pipeline` and `hep-pipeline`."""
    with_exit_code(app)
