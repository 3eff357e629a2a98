"""Importing MPI: that alone initialises it, which only processes that are ranks may do."""

from __future__ import annotations

from types import ModuleType


def load_mpi() -> ModuleType:
    """The module `mpi4py.MPI`, initialised for several threads that take turns.

    "Multiple", mpi4py's default, makes some implementations refuse windows or take slower paths.
    """
    import mpi4py  # noqa: PLC0415 - see above

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI  # noqa: PLC0415 - see above

    return MPI
