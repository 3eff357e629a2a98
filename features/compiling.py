"""Compiles kernels with numba and caches the machine code on disk.

Numba checks only the file of the compiled function for changes, not the functions that it calls: after an edit of
`isolation.py` the kernels of `kernels.py` would continue with the old machine code. So the cache has one folder per
state of this package's source.

The decorators also hide numba's missing types from mypy.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """Compile a loop over arrays."""
    return cast("Kernel", numba.njit(cache=True)(function))


def compiled_ufunc(function: Callable[..., float]) -> Any:
    """Compile a formula of scalars to a NumPy ufunc of scalars and arrays, which other kernels can call too."""
    return numba.vectorize(cache=True)(function)  # type: ignore[no-untyped-call]


def _choose_cache_folder() -> None:
    """Set numba's cache folder for this source; in an archive or a read-only checkout numba chooses its own."""
    package = Path(__file__).parent
    if not package.is_dir() or not os.access(package, os.W_OK):
        return
    source = hashlib.sha256()
    for file in sorted(package.glob("*.py")):
        source.update(file.read_bytes())
    cache = package / "__pycache__" / f"kernels-{source.hexdigest()[:16]}"
    numba.config.CACHE_DIR = str(cache)  # type: ignore[attr-defined]


_choose_cache_folder()
