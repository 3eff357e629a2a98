"""Compiles kernels with numba and caches the machine code on disk.

Numba checks only the file of the compiled function for changes, not the functions that it calls: after an edit of
`isolation.py` the kernels of `kernels.py` would continue with the old machine code. So the cache has one folder per
state of this package's source.

The decorators also hide numba's missing types from mypy.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numba
from numba.core import entrypoints

# Kernels take plain arrays. So numba need not import its extensions for awkward and vector, which takes a second.
entrypoints._already_initialized = True

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(
    function: Kernel,
    *,
    error_model: Literal["python", "numpy"] = "python",
    nogil: bool = False,
    fastmath: bool | AbstractSet[str] = False,
) -> Kernel:
    """Compile a loop over arrays at its first call.

    Args:
        function: The loop; its signature stays.
        error_model: A division by zero is an error, or, as `numpy`, infinite.
        nogil: Whether other Python threads run during a call.
        fastmath: LLVM's flags for transformations that are not exact.
    """
    _choose_cache_folder(Path(function.__code__.co_filename).parent)
    flags = set(fastmath) if isinstance(fastmath, AbstractSet) else fastmath
    return cast("Kernel", numba.njit(cache=True, error_model=error_model, nogil=nogil, fastmath=flags)(function))


def compiled_ufunc(function: Callable[..., float]) -> Any:
    """Compile a formula of scalars to a NumPy ufunc of scalars and arrays, which other kernels can call too."""
    _choose_cache_folder(Path(function.__code__.co_filename).parent)
    return numba.vectorize(cache=True)(function)  # type: ignore[no-untyped-call]


def cache_folder(name: str, places: Iterable[Path]) -> Path:
    """A folder of a name in the first place that can be written, or else in a temporary folder of this user.

    What lies there is run as it is, so a temporary folder that others can write to is not taken.
    """
    for place in places:
        if _can_be_written(place / name):
            return place / name
    own = Path(tempfile.gettempdir()) / f"hep-pipeline-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        own.mkdir(mode=0o700)
    status = own.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        own = Path(tempfile.mkdtemp(prefix="hep-pipeline-"))
    return own / name


def _can_be_written(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _choose_cache_folder(package: Path) -> None:
    """Set numba's cache folder for the kernels that are defined next."""
    numba.config.CACHE_DIR = str(_cache_of(package))  # type: ignore[attr-defined]


@cache
def _cache_of(package: Path) -> Path:
    """The cache for this source: next to it, or elsewhere for an archive or a read-only checkout."""
    source = hashlib.sha256()
    # An archive has no files to list; numba then notices what changes.
    for file in sorted(package.glob("*.py")):
        source.update(file.read_bytes())
    places = [package / "__pycache__"]
    with contextlib.suppress(RuntimeError):
        # A user of a container may have none.
        places.append(Path.home() / ".cache" / "hep-pipeline")
    return cache_folder(f"kernels-{source.hexdigest()[:16]}", places)
