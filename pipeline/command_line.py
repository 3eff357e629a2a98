"""The options that all commands share, the decorator of commands, and the printing of results."""

from __future__ import annotations

import inspect
import json
import os
import shlex
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from pipeline.config import load_config
from pipeline.configuration.credentials import hide_credentials
from pipeline.errors import ConfigError, MachineError
from pipeline.terminal.exit_codes import Exit, err, guard, out, outcomes

if TYPE_CHECKING:
    from pipeline.run_folder import RunFolder

app = typer.Typer(
    name="hep-pipeline",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
ConfigOption = Annotated[
    str,
    typer.Option(
        "--config",
        "-c",
        help="A YAML file, or the name of a shipped config.",
        envvar="HEP_PIPELINE_CONFIG",
    ),
]
#: Values for `--set`, split as by a shell. Values of the command line come later and take
#: precedence.
SET_VARIABLE: Final = "HEP_PIPELINE_SET"
#: Variables with the number of copies of a command: of Open MPI, of MPICH, and of a step of SLURM.
_LAUNCHER_BY_VARIABLE: Final = {
    "OMPI_COMM_WORLD_SIZE": "mpirun",
    "PMI_SIZE": "mpirun",
    "SLURM_STEP_NUM_TASKS": "srun",
}
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=C",
        help=f"Override a config value; may be given often. Also: {SET_VARIABLE}='A=B C=D'.",
    ),
]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        min=0,
        envvar="HEP_PIPELINE_WAIT",
        show_default="refuse at once",
        help="Time to wait for another run on the run folder to end (inf: no limit).",
    ),
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Run even if up to date.")]
ExitCodeOption = Annotated[
    bool,
    typer.Option(
        "--exit-code", help=f"End with exit code {Exit.NOTHING_TO_DO:d} if there was nothing to do."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


class CliOptions(NamedTuple):
    """The options that all commands share."""

    config: str
    """A YAML file, or the name of a shipped config."""
    overrides: list[str]
    """Texts `a.b=c`: those of the environment, then those of `--set`."""
    wait: float = 0.0
    """How long to wait for another run on the run folder [s]."""

    def with_override(self, key: str, value: object) -> CliOptions:
        """Return the options with one more override, unless its value is None."""
        if value is None:
            return self
        return self._replace(overrides=[*self.overrides, f"{key}={value}"])

    def run_folder(self) -> RunFolder:
        """Read the config and return its run folder; nothing is written."""
        from pipeline.run_folder import RunFolder

        # Messages and progress go to the standard error.
        return RunFolder(load_config(self.config, self.overrides), err, wait=self.wait)

    def command_line(self, *arguments: str) -> str:
        """Return what a user types for a command with these options; credentials are hidden."""
        command_line = ["python", "-m", "pipeline", *arguments, "--config", self.config]
        for override in self.overrides:
            command_line += ["--set", hide_credentials(override)]
        return shlex.join(command_line)


def print_version(is_set: bool) -> None:
    """Print the version and exit, if `--version` is set."""
    if is_set:
        from pipeline.runs.provenance import DISTRIBUTION, code_version, installed_version

        installed = installed_version(DISTRIBUTION) or "(not installed)"
        print_lines(f"{DISTRIBUTION} {installed}, {code_version()}")
        raise typer.Exit


@app.callback()
def app_options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """ROOT files in, trained and evaluated event classifiers out."""


def command(work: Callable[..., None], *, without: Collection[str] = ()) -> Callable[..., None]:
    """Register a function as a command and return it unchanged.

    The command has the function's name; its help is the docstring. The first argument of the
    function is a `CliOptions`; its other arguments are options of this command alone. Typer, which
    reads options from a signature, gets a function with the options of both kinds.

    Args:
        work: The function.
        without: Names of options that the command lacks: `wait` where it never waits for another
            run.
    """

    # Typer calls this function; its parameters are the shared options.
    def run(
        config: ConfigOption = "demo",
        overrides: SetOption = None,
        wait: WaitOption = 0.0,
        debug: DebugOption = False,
        **arguments: Any,
    ) -> None:
        def start() -> None:
            """Make the options and call the function; `guard` turns errors into exit codes."""
            # This comes before any lock, since of two copies of a command one would wait for the
            # other.
            _check_single_process()
            options = CliOptions(config, [*_overrides_of_environment(), *(overrides or [])], wait)
            work(options, **arguments)

        guard(start, debug=debug)

    # The first parameter is the `CliOptions`.
    _, *own_parameters = inspect.signature(work, eval_str=True).parameters.values()
    # The last parameter is `**arguments`.
    *shared_parameters, _ = inspect.signature(run, eval_str=True).parameters.values()
    # An option without a default may follow others only if it is given by name.
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in (*own_parameters, *shared_parameters)
        if parameter.name not in without
    ]
    run.__name__, run.__doc__ = work.__name__, work.__doc__
    # Typer reads the signature and the annotations.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command()(run)
    return work


def stage_command(name: str, description: str, *, is_optional: bool = False) -> None:
    """Register the command of a stage without options of its own.

    An optional stage is one that only some configs ask for; its command has `--if-wanted`, with
    which it does nothing under other configs.
    """

    def work(
        options: CliOptions,
        if_wanted: Annotated[
            bool, typer.Option("--if-wanted", help="Run only if the config asks for it.")
        ] = False,
        force: ForceOption = False,
        exit_code: ExitCodeOption = False,
    ) -> None:
        from pipeline.stages.table import STAGE_OF

        stage = STAGE_OF[name]
        if if_wanted and not stage.is_wanted(options.run_folder().config):
            print_outcome(f"{name}: not wanted ({stage.wanted_by} does not ask for it)")
            end_command(did=False, exit_code=exit_code)
        else:
            run_stages(options, name, force=force, exit_code=exit_code)

    work.__name__, work.__doc__ = name, description
    command(work, without=() if is_optional else ("if_wanted",))


def run_stages(options: CliOptions, *names: str, force: bool, exit_code: bool) -> None:
    """Run those of the named stages that are stale, or all of them with `force`.

    With `exit_code` the command ends with exit code 99 if no stage ran.
    """
    from pipeline.commands.run import run

    has_run = run(options.run_folder(), names, force=force)
    end_command(did=has_run, exit_code=exit_code)


def end_command(*, did: bool, exit_code: bool) -> None:
    """End with exit code 99 if the command did nothing and the user gave `--exit-code`."""
    if exit_code and not did:
        raise typer.Exit(Exit.NOTHING_TO_DO)


def _check_single_process() -> None:
    """Refuse to be one of several copies of a command, which mpirun or srun has started.

    Both set a variable with the number of copies. Ranks of our own training run another program, so
    they do not come here.

    Raises:
        MachineError: There are several copies.
    """
    for variable, launcher in _LAUNCHER_BY_VARIABLE.items():
        num_copies = os.environ.get(variable, "1")
        if num_copies != "1":
            raise MachineError(
                f"{launcher} started this command as one of {num_copies} ranks ({variable} is "
                f"set): each would run the whole pipeline. Type it without {launcher}: `train` "
                "starts its own ranks, as many as train.workers, by mpirun or srun "
                "(train.launcher)."
            )


def _overrides_of_environment() -> list[str]:
    """Return the texts `a.b=c` of HEP_PIPELINE_SET, split as a shell does."""
    try:
        return shlex.split(os.environ.get(SET_VARIABLE, ""))
    except ValueError as cause:
        raise ConfigError(f"{SET_VARIABLE} (SET of make): {cause}. Quote as in a shell.") from None


def require_at_most_one(**options: object) -> None:
    """Refuse options of which only one would have an effect.

    `options` are their values by name; an option that is not given has a false value.
    """
    given_names = [f"--{name}" for name, value in options.items() if value]
    if len(given_names) > 1:
        raise ConfigError(
            f"{' and '.join(given_names)}: one of them would have no effect. Give one only."
        )


def print_lines(*lines: object) -> None:
    """Print lines of a command's result to the standard output, without markup.

    Raises:
        MachineError: The output cannot be written.
    """
    for line in lines:
        out.print(str(line), markup=False)


def print_outcome(*lines: object) -> None:
    """Print what a command has done to the standard output; lines that cannot be written get lost.

    The outcome of a command is that of its work.
    """
    for line in lines:
        outcomes.print(str(line), markup=False)


def print_json(result: object) -> None:
    """Print a command's result as JSON to the standard output."""
    out.print_json(json.dumps(result, ensure_ascii=False))
