"""What all commands share: the options, the way from a function to a command, and the lines of a result."""

from __future__ import annotations

import inspect
import json
import os
import shlex
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from pipeline.config import load_config
from pipeline.configuration.credentials import shown
from pipeline.errors import ConfigError, MachineError
from pipeline.terminal.exit_codes import Exit, err, guard, out

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
#: Values for `--set`, split as by a shell. Values of the command line come later and take precedence.
SET_VARIABLE: Final = "HEP_PIPELINE_SET"
#: Variables with the number of copies of a command: of Open MPI, of MPICH, and of a step of SLURM.
_SIZES: Final = {
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


class Asked(NamedTuple):
    """The options that all commands share."""

    config: str
    overrides: list[str]
    wait: float = 0.0

    def plus(self, key: str, value: object) -> Asked:
        """The same options with one more override, unless its value is None."""
        return (
            self if value is None else self._replace(overrides=[*self.overrides, f"{key}={value}"])
        )

    def run_folder(self) -> RunFolder:
        """The run folder of this config; this writes nothing."""
        from pipeline.run_folder import RunFolder

        return RunFolder(load_config(self.config, self.overrides), err, wait=self.wait)

    def typed(self, *words: str) -> str:
        """The command line, without secrets."""
        changes = [word for each in map(shown, self.overrides) for word in ("--set", each)]
        return shlex.join(["python", "-m", "pipeline", *words, "--config", self.config, *changes])


def version(asked: bool) -> None:
    """Print the version and exit, if asked."""
    if asked:
        from pipeline.runs.provenance import DISTRIBUTION, code_version, installed_version

        say(
            f"{DISTRIBUTION} {installed_version(DISTRIBUTION) or '(not installed)'}, {code_version()}"
        )
        raise typer.Exit


@app.callback()
def app_options(
    _: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """ROOT files in, trained and evaluated event classifiers out."""


def command(work: Callable[..., None], *, without: Collection[str] = ()) -> Callable[..., None]:
    """Make a command of a function: its name is the command's, its docstring the help. Returns the function unchanged.

    The first argument of the function is `Asked`, the options that all commands share; `without` names options that the
    command lacks, such as `wait` where it never waits for another one.
    """

    def run(
        config: ConfigOption = "demo",
        overrides: SetOption = None,
        wait: WaitOption = 0.0,
        debug: DebugOption = False,
        **options: Any,
    ) -> None:
        def start() -> None:
            # Before any lock: of two copies one would wait for the other.
            _refuse_outer_ranks()
            work(Asked(config, [*_set_by_environment(), *(overrides or [])], wait), **options)

        guard(start, debug=debug)

    _, *options = inspect.signature(work, eval_str=True).parameters.values()
    *shared, _ = inspect.signature(run, eval_str=True).parameters.values()
    options = [each for each in (*options, *shared) if each.name not in without]
    options = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in options]
    run.__name__, run.__doc__ = work.__name__, work.__doc__
    # Typer reads both.
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in options}
    app.command()(run)
    return work


def stage_command(name: str, words: str, *, is_optional: bool = False) -> None:
    """Make the command of a stage without own options; only some configs want an optional one."""

    def work(
        asked: Asked,
        if_wanted: Annotated[
            bool, typer.Option("--if-wanted", help="Run only if the config asks for it.")
        ] = False,
        force: ForceOption = False,
        exit_code: ExitCodeOption = False,
    ) -> None:
        from pipeline.stages.table import STAGE_OF

        stage = STAGE_OF[name]
        if if_wanted and not stage.is_wanted(asked.run_folder().config):
            say(f"{name}: not wanted ({stage.wanted_by} does not ask for it)")
            end_command(did=False, exit_code=exit_code)
        else:
            run_stages(asked, name, force=force, exit_code=exit_code)

    work.__name__, work.__doc__ = name, words
    command(work, without=() if is_optional else ("if_wanted",))


def run_stages(asked: Asked, *names: str, force: bool, exit_code: bool) -> None:
    """Run the stale ones of some stages."""
    from pipeline.commands.run import run

    end_command(did=run(asked.run_folder(), names, force=force), exit_code=exit_code)


def end_command(*, did: bool, exit_code: bool) -> None:
    """End a command that may have had nothing to do."""
    if exit_code and not did:
        raise typer.Exit(Exit.NOTHING_TO_DO)


def _refuse_outer_ranks() -> None:
    """Refuse to be one of several copies that mpirun or srun started; ranks of our own training are another program."""
    for name, launcher in _SIZES.items():
        if os.environ.get(name, "1") != "1":
            raise MachineError(
                f"{launcher} started this command as one of {os.environ[name]} ranks ({name} is set): each would run "
                f"the whole pipeline. Type it without {launcher}: `train` starts its own ranks, as many as "
                f"train.workers, by mpirun or srun (train.launcher)."
            )


def _set_by_environment() -> list[str]:
    given = os.environ.get(SET_VARIABLE, "")
    try:
        return shlex.split(given)
    except ValueError as cause:
        raise ConfigError(f"{SET_VARIABLE} (SET of make): {cause}. Quote as in a shell.") from None


def refuse_together(**given: object) -> None:
    """Refuse options of which only one would have an effect; `given` are their values by name."""
    found = [f"--{name}" for name, value in given.items() if value]
    if len(found) > 1:
        raise ConfigError(
            f"{' and '.join(found)}: one of them would have no effect. Give one only."
        )


def say(*lines: object) -> None:
    """Print lines of a command's result."""
    for line in lines:
        out.print(str(line), markup=False)


def say_json(content: object) -> None:
    """Print a command's result as JSON."""
    out.print_json(json.dumps(content, ensure_ascii=False))
