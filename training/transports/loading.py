"""Imports MPI. The import initialises MPI, so only ranks may do it."""

from __future__ import annotations

from types import ModuleType


def load_mpi() -> ModuleType:
    """The module `mpi4py.MPI`, initialised for threads that take turns ("serialized").

    With "multiple", mpi4py's default, some implementations refuse windows or take slower paths.
    """
    import mpi4py  # noqa: PLC0415 - see above

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI  # noqa: PLC0415 - see above

    return MPI
