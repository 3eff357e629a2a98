"""The command `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.command_line import CliOptions, command, require_at_most_one
from pipeline.terminal.exit_codes import err, out

_DEFAULT_STUDY = "thesis-hlf"


@command
def compare(
    options: CliOptions,
    study: Annotated[
        str | None, typer.Option("--study", help="A name of --list, a YAML file, or all.")
    ] = None,
    form: Annotated[str, typer.Option("--form", help="small (minutes) or full.")] = "small",
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Sets compare.train.workers.")
    ] = None,
    publish: Annotated[
        Path | None, typer.Option("--publish", help="Folder of the page: docs/studies.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="List the studies: source, form, expected time.")
    ] = False,
    claims: Annotated[
        Path | None,
        typer.Option(
            "--claims", help="Folder of finished studies: writes the page of their claims."
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check", help="Folder of a published study: checks its simulated times again."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Make all runs again.")] = False,
) -> None:
    """Study optimisers on the same events: claims of a source, tables, figures."""
    from hep_studies.compare import compare, make_all
    from hep_studies.study_files import list_studies, read_study
    from pipeline.configuration.paths import folder_of_option

    require_at_most_one(study=study, list=show, claims=claims, check=check)
    require_at_most_one(force=force, list=show, claims=claims, check=check)
    require_at_most_one(publish=publish, check=check)
    if publish is not None:
        publish = folder_of_option(publish, "--publish")
    if claims is not None:
        from hep_studies.claims import write_claims

        claims = folder_of_option(claims, "--claims")
        err.print(f"claims: {write_claims(claims, publish or claims)}", markup=False)
        return
    if show:
        out.print(list_studies())
        return

    options = options.with_override("compare.train.workers", workers)
    run_folder = options.run_folder()
    if check is not None:
        from hep_studies.check_again import check_again

        page = check_again(run_folder, folder_of_option(check, "--check"))
        err.print(f"study: {page}", markup=False)
        return

    def make(name: str) -> None:
        study_to_make = read_study(name, form, run_folder.config.compare)
        command_line = options.command_line("compare", "--study", name, "--form", form)
        page = compare(
            run_folder, study_to_make, command=command_line, force=force, publish=publish
        )
        err.print(f"study: {page}", markup=False)

    if study == "all":
        make_all(make, run_folder.say)
    else:
        make(study or _DEFAULT_STUDY)
