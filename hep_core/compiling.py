"""Compiles kernels with numba and caches the machine code on disk.

Numba checks only the file of the compiled function for changes, not the functions that it calls: after an edit of
`isolation.py` the kernels of `kernels.py` would continue with the old machine code. So the cache has one folder per
state of this package's source, and of the options of the compilation.

The decorators also hide numba's missing types from mypy.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import stat
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, Final, TypeVar, cast

import numba
from numba.core import config, entrypoints
from numba.core.caching import UserProvidedCacheLocator

# Kernels take plain arrays. So numba need not import its extensions for awkward and vector, which takes a second.
entrypoints._already_initialized = True
# A file of that name in the current folder has no influence.
config._config_fname = os.devnull
config.reload_config()  # type: ignore[no-untyped-call]

#: They set options too, and serve other packages.
_DECORATORS: Final = inspect.getsource(sys.modules[__name__])

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel, **options: Any) -> Kernel:
    """Compile a loop over arrays at its first call, with options of `numba.njit`; its signature stays.

    With `error_model="numpy"` a division by zero is infinite, and no error; with `nogil` other Python threads run
    during a call; `fastmath` has LLVM's flags for transformations that are not exact.
    """
    with _own_cache(options):
        return cast("Kernel", numba.njit(cache=True, **options)(function))


def compiled_ufunc(function: Callable[..., float]) -> Any:
    """Compile a formula of scalars to a NumPy ufunc of scalars and arrays, which other kernels can call too."""
    with _own_cache({}):
        return numba.vectorize(cache=True)(function)  # type: ignore[no-untyped-call]


def cache_folder(name: str, places: Iterable[Path]) -> Path:
    """A folder of a name in the first place that can be written, or else in a temporary folder of this user.

    What lies there is run as it is, so a temporary folder that others can write to is not taken.
    """
    for place in places:
        if _is_ours(place / name):
            return place / name
    own = Path(tempfile.gettempdir()) / f"hep-pipeline-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        own.mkdir(mode=0o700)
    status = own.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        own = Path(tempfile.mkdtemp(prefix="hep-pipeline-"))
    return own / name


def _is_ours(folder: Path) -> bool:
    """Whether we can write to a folder, and none but its owner and us can change it or the one that holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    found = [each.stat() for each in (folder, folder.parent)]
    return all(
        each.st_uid in (os.getuid(), 0) and not each.st_mode & stat.S_IWOTH for each in found
    )


@contextlib.contextmanager
def _own_cache(options: Mapping[str, Any]) -> Iterator[None]:
    """Let numba cache the functions that are compiled within, with these options, in `KernelCache`."""
    # A set has another order in each process.
    KernelCache.options = json.dumps(options, sort_keys=True, default=sorted)
    numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.{KernelCache.__name__}"  # type: ignore[attr-defined]
    try:
        yield
    finally:
        numba.config.CACHE_LOCATOR_CLASSES = ""  # type: ignore[attr-defined]


class KernelCache(UserProvidedCacheLocator):
    """One folder per state of a package's source and options, whether the package is a folder or in an archive.

    An archive that Spark ships has another path and time in each application; numba's own caches depend on these.
    """

    options: ClassVar[str] = ""

    def __init__(self, py_func: FunctionType, py_file: str) -> None:
        self._lineno = py_func.__code__.co_firstlineno
        self._cache_path = str(_cache_of(Path(py_file).parent, self.options))

    @classmethod
    def from_function(cls, py_func: FunctionType, py_file: str) -> KernelCache:
        """The cache of a function."""
        return cls(py_func, py_file)

    def get_source_stamp(self) -> str:
        """Name of the folder, which changes with the source."""
        return Path(self._cache_path).name


@cache
def _cache_of(package: Path, options: str) -> Path:
    """The cache for this source: next to it, or elsewhere for an archive or a read-only checkout."""
    source = hashlib.sha256(_DECORATORS.encode() + options.encode())
    for name, content in sorted(_sources(package)):
        source.update(name.encode())
        source.update(content)
    places = [package / "__pycache__"]
    with contextlib.suppress(RuntimeError):
        # A user of a container may have none.
        places.append(Path.home() / ".cache" / "hep-pipeline")
    return cache_folder(f"kernels-{source.hexdigest()[:16]}", places)


def _sources(package: Path) -> Iterator[tuple[str, bytes]]:
    archive = next((parent for parent in package.parents if parent.is_file()), None)
    root: Traversable = (
        package if archive is None else zipfile.Path(archive, f"{package.relative_to(archive)}/")
    )
    for file in root.iterdir():
        if file.name.endswith(".py"):
            yield file.name, file.read_bytes()
