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
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel, *, error_model: Literal["python", "numpy"] = "python", nogil: bool = False) -> Kernel:
    """Compile a loop over arrays at its first call.

    Args:
        function: The loop; its signature stays.
        error_model: A division by zero is an error, or, as `numpy`, infinite.
        nogil: Whether other Python threads run during a call.
    """
    return cast("Kernel", numba.njit(cache=True, error_model=error_model, nogil=nogil)(function))


def compiled_ufunc(function: Callable[..., float]) -> Any:
    """Compile a formula of scalars to a NumPy ufunc of scalars and arrays, which other kernels can call too."""
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


def _choose_cache_folder() -> None:
    """Set numba's cache folder for this source: next to it, or elsewhere for an archive or a read-only checkout."""
    package = Path(__file__).parent
    source = hashlib.sha256()
    # An archive has no files to list; numba then notices what changes.
    for file in sorted(package.glob("*.py")):
        source.update(file.read_bytes())
    places = [package / "__pycache__"]
    with contextlib.suppress(RuntimeError):
        # A user of a container may have none.
        places.append(Path.home() / ".cache" / "hep-pipeline")
    numba.config.CACHE_DIR = str(cache_folder(f"kernels-{source.hexdigest()[:16]}", places))  # type: ignore[attr-defined]


_choose_cache_folder()
