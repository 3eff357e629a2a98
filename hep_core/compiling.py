"""Compiles kernels with numba and caches the machine code on disk.

Numba checks only the file of the compiled function for changes, not the functions that it calls:
after an edit of `isolation.py` the kernels of `kernels.py` would continue with the old machine
code. So the cache has one folder for each state of the source of the function's package, and of the
options of the compilation.

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

# Kernels take plain arrays. So numba need not import its extensions for awkward and vector, which
# takes a second.
entrypoints._already_initialized = True
# A file of that name in the current folder has no influence.
config._config_fname = os.devnull
config.reload_config()  # type: ignore[no-untyped-call]

#: The source of this module: the decorators set options too, for functions of other packages.
_DECORATORS: Final = inspect.getsource(sys.modules[__name__])

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel, **options: Any) -> Kernel:
    """Compile a loop over arrays at its first call, with options of `numba.njit`.

    Some options are: `error_model="numpy"`, by which a division by zero is infinite, and no error;
    `nogil`, by which other Python threads run during a call; `fastmath`, LLVM's flags for
    transformations that are not exact.
    """
    with _cached_by_source(options):
        return cast("Kernel", numba.njit(cache=True, **options)(function))


def compiled_ufunc(function: Callable[..., float]) -> Any:
    """Compile a formula of scalars to a NumPy ufunc, which other kernels can call too."""
    with _cached_by_source({}):
        return numba.vectorize(cache=True)(function)  # type: ignore[no-untyped-call]


def cache_folder(name: str, parents: Iterable[Path]) -> Path:
    """A folder of a name in the first parent that only this user can write to.

    If there is none, it is in a temporary folder of this user; a new one if the usual one could be
    read or written by others. Machine code in the folder runs unchecked, so no other user may be
    able to write to it.
    """
    for parent in parents:
        if _is_private(parent / name):
            return parent / name
    temporary = Path(tempfile.gettempdir()) / f"hep-pipeline-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        temporary.mkdir(mode=0o700)
    status = temporary.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_ours or status.st_mode & 0o077:
        temporary = Path(tempfile.mkdtemp(prefix="hep-pipeline-"))
    return temporary / name


def _is_private(folder: Path) -> bool:
    """Whether we can write to a folder, and no other user can change the folder or its parent.

    It makes the folder. Both must belong to this user or root, and not be writable for everyone.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    for path in (folder, folder.parent):
        status = path.stat()
        if status.st_uid not in (os.getuid(), 0) or status.st_mode & stat.S_IWOTH:
            return False
    return True


@contextlib.contextmanager
def _cached_by_source(options: Mapping[str, Any]) -> Iterator[None]:
    """Let numba cache the functions that are compiled in the context, with these options.

    It sets global state of numba and of `KernelCache`, and resets that of numba at the end.
    """
    # Sets become sorted lists, since a set has another order in each process.
    KernelCache.options = json.dumps(options, sort_keys=True, default=sorted)
    numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.{KernelCache.__name__}"  # type: ignore[attr-defined]
    try:
        yield
    finally:
        numba.config.CACHE_LOCATOR_CLASSES = ""  # type: ignore[attr-defined]


class KernelCache(UserProvidedCacheLocator):
    """One folder for each state of a package's source and options; the package may be an archive.

    An archive that Spark ships has another path and time in each application, and numba's own
    caches depend on these.
    """

    options: ClassVar[str] = ""
    """Options of the functions that are being compiled, as JSON."""

    def __init__(self, py_func: FunctionType, py_file: str) -> None:
        # The base class names the files of a function by this line and puts them in this folder.
        self._lineno = py_func.__code__.co_firstlineno
        self._cache_path = str(_package_cache(Path(py_file).parent, self.options))

    @classmethod
    def from_function(cls, py_func: FunctionType, py_file: str) -> KernelCache:
        """The cache of a function."""
        return cls(py_func, py_file)

    def get_source_stamp(self) -> str:
        """Name of the folder, which changes with the source."""
        return Path(self._cache_path).name


@cache
def _package_cache(package: Path, options: str) -> Path:
    """The cache folder of a package: beside its source, or elsewhere if that is not writable.

    Its name has a hash of all Python files of the package, of this module and of the options.
    """
    digest = hashlib.sha256(_DECORATORS.encode() + options.encode())
    for name, source in sorted(_source_files(package)):
        digest.update(name.encode())
        digest.update(source)
    parents = [package / "__pycache__"]
    # A user of a container may have no home.
    with contextlib.suppress(RuntimeError):
        parents.append(Path.home() / ".cache" / "hep-pipeline")
    return cache_folder(f"kernels-{digest.hexdigest()[:16]}", parents)


def _source_files(package: Path) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the Python files of a package, a folder or a part of a zip archive."""
    folder: Traversable = package
    # A parent that is a file is the archive.
    for parent in package.parents:
        if parent.is_file():
            folder = zipfile.Path(parent, f"{package.relative_to(parent)}/")
    for file in folder.iterdir():
        if file.name.endswith(".py"):
            yield file.name, file.read_bytes()
