"""The commands `simulate` and `validate-simulation`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pipeline.command_line import CliOptions, command, print_lines, stage_command

stage_command(
    "simulate",
    "Make events: generator, pile-up and a fast detector to ROOT files (Spark; extra `simulate`).",
    is_optional=True,
)


@partial(command, without=["wait"])
def validate_simulation(
    options: CliOptions,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            "--reference",
            metavar="SAMPLE=GLOB",
            help="Files of a full simulation; else the bundled ones.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for figures and numbers.")] = Path(
        "validation"
    ),
) -> None:
    """Compare simulated events with those of Delphes: every input, boosted trees, a network."""
    from hep_simulation.validate_simulation import validate_simulation

    print_lines(*validate_simulation(options.run_folder(), reference or [], out))
