"""Plugins: files, or installed modules, by which users register features, networks, methods and more of their own.

They use the decorators that our own code uses. Every process that validates a config, a run or a model loads them
first: the command line from the config, ranks and agents from their specification, others from the environment.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

#: Plugins of this process, for those that it starts.
VARIABLE: Final = "HEP_PIPELINE_PLUGINS"
#: Entry points of this group name plugins that are installed.
GROUP: Final = "hep_pipeline"
#: Modules that take a second to import: a plugin imports them where it uses them.
_SLOW: Final = frozenset({"torch", "pyspark"})
_loaded: dict[str, ModuleType] = {}
_being_imported: list[str] = []
_after_load: list[Callable[[], object]] = []


class PluginError(Exception):
    """A plugin is missing, cannot be imported, or registers what is not possible; the message names file and line."""


def after_loading(refresh: Callable[[], object]) -> None:
    """Call a function after plugins were loaded: it makes a table anew from what is registered."""
    _after_load.append(refresh)


def name_validator(table: Mapping[str, Any], what: str) -> Callable[[str], str]:
    """A validator of names in a table, which plugins may fill later; a mistake is named with what is near."""

    def known(name: str) -> str:
        if name not in table:
            near = "".join(
                f" Did you mean '{each}'?" for each in difflib.get_close_matches(name, table, n=1)
            )
            raise ValueError(f"there is no {what} '{name}', only {', '.join(table)}.{near}")
        return name

    return known


def loaded() -> list[str]:
    """The plugins of this process: paths of files, and names of modules."""
    return list(_loaded)


def names() -> list[str]:
    """The plugins of this process, files without their folders: what a model says it needs."""
    return [Path(each).name if each.endswith(".py") else each for each in _loaded]


def load(plugins: Iterable[str]) -> None:
    """Import plugins that are not loaded yet: paths of Python files, names of modules or entry points of the group.

    Raises:
        PluginError: One cannot be imported.
    """
    new = [name for name in dict.fromkeys(map(absolute_name, plugins)) if name not in _loaded]
    for name in new:
        _loaded[name] = _imported(name)
    if new:
        for refresh in _after_load:
            refresh()
        os.environ[VARIABLE] = os.pathsep.join(_loaded)


def load_from_environment() -> None:
    """Import the plugins of the process that started this one."""
    load(filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))


def being_imported() -> str | None:
    """The name of the module of the plugin that is imported at the moment."""
    return _being_imported[-1] if _being_imported else None


def plugin_file(module: str) -> Path | None:
    """The file of a module that is a plugin, or that belongs to the package of one."""
    packages = {plugin.__name__.partition(".")[0] for plugin in _loaded.values()}
    imported = sys.modules.get(module)
    if imported is None or imported.__file__ is None or module.partition(".")[0] not in packages:
        return None
    return Path(imported.__file__)


def absolute_name(name: str, folder: Path | str = "") -> str:
    """The absolute path of a file; the name of a module stays."""
    return (
        str((Path(folder) / Path(name).expanduser()).absolute()) if name.endswith(".py") else name
    )


def plugin_error(error: BaseException) -> PluginError | None:
    """The error with file and line of a plugin, if one raised it."""
    files = {str(module.__file__): name for name, module in _loaded.items()}
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files
    ]
    if not frames or isinstance(error, PluginError):
        return None
    where = f"plugin {frames[-1].filename}, line {frames[-1].lineno}"
    return PluginError(f"{where}: {type(error).__name__}: {error}")


def _imported(name: str) -> ModuleType:
    if name.endswith(".py"):
        return _from_file(Path(name))
    points = {point.name: point.value for point in metadata.entry_points(group=GROUP)}
    module = points.get(name, name)
    if find_spec(module.split(".")[0]) is None:
        known = f" Installed plugins: {', '.join(points)}." if points else ""
        raise PluginError(
            f"plugins: there is no module '{module}', and no file of that name.{known}"
        )
    with _importing(module, module):
        return importlib.import_module(module)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        # Spark brings the file to its executors, which do not see the folder.
        found = [
            folder / path.name for folder in map(Path, sys.path) if (folder / path.name).is_file()
        ]
        if not found:
            raise PluginError(f"plugins: there is no file {path}")
        path = found[0]
    spec = spec_from_file_location(f"plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise PluginError(f"plugins: {path} is no Python file")
    if spec.name in sys.modules:
        raise PluginError(
            f"plugins: {path} has the file name of another plugin. Give it another one"
        )
    sys.modules[spec.name] = module = module_from_spec(spec)
    try:
        with _importing(str(path), spec.name):
            spec.loader.exec_module(module)
    except PluginError:
        del sys.modules[spec.name]
        raise
    return module


class _Slow:
    """Refuses to import what is slow, while a plugin is imported."""

    def find_spec(self, name: str, *_: object) -> None:
        """Called for each module that is not imported yet."""
        if name in _SLOW:
            raise ImportError(
                f"{name} slows every command down; import it inside the function that uses it"
            )


@contextmanager
def _importing(name: str, module: str) -> Iterator[None]:
    """An error names the line of the plugin."""
    slow = _Slow()
    sys.meta_path.insert(0, slow)
    _being_imported.append(module)
    try:
        yield
    except (Exception, SystemExit) as cause:
        frames = traceback.extract_tb(cause.__traceback__)
        # Its file, or that of a module of its name.
        own = [
            frame
            for frame in frames
            if frame.filename.endswith((name, f"{name.replace('.', os.sep)}.py"))
        ]
        line = cause.lineno if isinstance(cause, SyntaxError) else (own or frames)[-1].lineno
        raise PluginError(f"plugin {name}, line {line}: {type(cause).__name__}: {cause}") from cause
    finally:
        _being_imported.pop()
        sys.meta_path.remove(slow)
