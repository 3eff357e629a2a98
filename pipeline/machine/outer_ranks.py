"""Refuses to be one of several copies of a command that mpirun or srun started: each would run the whole pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pipeline.errors import MachineError

#: Variables with the number of copies: of Open MPI, of MPICH, and of a step of SLURM.
_SIZES: Final = {"OMPI_COMM_WORLD_SIZE": "mpirun", "PMI_SIZE": "mpirun", "SLURM_STEP_NUM_TASKS": "srun"}


def refuse_outer_ranks(env: Mapping[str, str]) -> None:
    """Refuse an environment that mpirun or srun made for one of several ranks.

    Ranks of our own training never come here: they are another program.
    """
    for name, launcher in _SIZES.items():
        if env.get(name, "1") != "1":
            raise MachineError(
                f"{launcher} started this command as one of {env[name]} ranks ({name} is set): each would run the "
                f"whole pipeline. Type it without {launcher}: `train` starts its own ranks, as many as train.workers, "
                f"by mpirun or srun (train.launcher)."
            )
