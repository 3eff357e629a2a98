"""Refuses to be one of several copies of a command that mpirun or srun started: each would run the whole pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pipeline.errors import MachineError

#: Variables of the ranks of an MPI job, and those with its size.
_OF_MPIRUN: Final[dict[str, str]] = {name: name for name in ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")}
#: The same of its interfaces to launchers, which srun and the shell of salloc set too; one tells no size.
_OF_INTERFACES: Final = {"PMI_RANK": "PMI_SIZE", "PMIX_RANK": ""}
#: Batch scripts and shells of salloc have the higher numbers.
_FIRST_RESERVED_STEP: Final = 0xFFFFFFF0


def refuse_outer_ranks(env: Mapping[str, str]) -> None:
    """Refuse an environment that mpirun or srun made for one of several ranks.

    Ranks of our own training never come here: they are another program.
    """
    found = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID") or ""
    step = int(found) if found.isdecimal() else None
    names = _OF_MPIRUN if step is not None else _OF_MPIRUN | _OF_INTERFACES
    name = next((name for name, size in names.items() if name in env and env.get(size) != "1"), None)
    if name is not None:
        launcher, where = "mpirun", f"an MPI job ({name} is set)"
    elif step is not None and step < _FIRST_RESERVED_STEP and env.get("SLURM_STEP_NUM_TASKS") != "1":
        launcher, where = "srun", f"SLURM step {step}"
    else:
        return
    raise MachineError(
        f"{launcher} started this command as one of the ranks of {where}: each rank would run the whole pipeline. "
        f"Type it without {launcher}: `train` starts its own ranks, as many as train.workers, by mpirun or srun "
        f"(train.launcher)."
    )
