"""Plugins: files or installed modules by which users register features, networks and more.

They use the decorators that our own code uses. Every process that validates a config, a run or a
model loads them first. The command line knows them from the config, ranks and agents from their
specification, other processes from the environment.
"""

from __future__ import annotations

import importlib
import json
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

from hep_core.unknown_names import there_is_no

#: Packages that are no plugins, even if one lies in them.
OUR_PACKAGES: Final = (
    *("hep_core", "ingestion", "features", "models", "training", "pipeline"),
    *("hep_simulation", "hep_studies"),
)
#: Plugins of this process, for the processes that it starts.
VARIABLE: Final = "HEP_PIPELINE_PLUGINS"
#: Entry points of this group name plugins that are installed.
GROUP: Final = "hep_pipeline"
#: Modules that take a second to import: a plugin imports them where it uses them.
_SLOW: Final = frozenset({"torch", "pyspark"})
#: Loaded plugins by absolute path of the file, or by name.
_loaded: dict[str, ModuleType] = {}
#: Names of the modules of plugins that are being imported, the innermost last.
_being_imported: list[str] = []
#: Functions to call after plugins are loaded.
_refresh_functions: list[Callable[[], object]] = []


class PluginError(Exception):
    """A plugin is missing, fails, or registers an impossible object; the message names the line."""


def after_loading(refresh: Callable[[], object]) -> None:
    """Register a function to call whenever new plugins are loaded.

    It can rebuild a table of registered objects.
    """
    _refresh_functions.append(refresh)


def name_validator(table: Mapping[str, Any], noun: str) -> Callable[[str], str]:
    """A function that returns a name unchanged, or raises ValueError if it is not in a table.

    It reads the table at each call, since plugins may fill it later. `noun` stands in
    messages, such as `network`.
    """

    def require_name(name: str) -> str:
        if name in table:
            return name
        raise ValueError(there_is_no(noun, name, table))

    return require_name


def loaded() -> list[str]:
    """The plugins of this process: paths of files, and names of modules."""
    return list(_loaded)


def names() -> list[str]:
    """The plugins of this process, as the file of a model names them.

    They are names of modules, and names of files without their folder.
    """
    return [Path(plugin).name if plugin.endswith(".py") else plugin for plugin in _loaded]


def load(plugins: Iterable[str]) -> None:
    """Import plugins that are not loaded yet: Python files, modules or entry points of the group.

    If there are new ones, it calls the functions of `after_loading`, and names all plugins in the
    environment for the processes that this one starts.

    Raises:
        PluginError: One cannot be imported.
    """
    plugin_names = dict.fromkeys(absolute_name(plugin) for plugin in plugins)
    new_names = [name for name in plugin_names if name not in _loaded]
    for name in new_names:
        _loaded[name] = _import_file(Path(name)) if name.endswith(".py") else _import_module(name)
    if new_names:
        for refresh in _refresh_functions:
            refresh()
        os.environ[VARIABLE] = value_of_variable()


def value_of_variable() -> str:
    """The value of `VARIABLE` for processes that this one starts; empty without plugins.

    It is JSON, since a path may have any character.
    """
    return json.dumps(loaded()) if _loaded else ""


def load_from_environment() -> None:
    """Import the plugins of the process that started this one."""
    load(json.loads(os.environ.get(VARIABLE) or "[]"))


def being_imported() -> str | None:
    """Name of the module of the plugin that is being imported."""
    return _being_imported[-1] if _being_imported else None


def plugin_file(module: str) -> Path | None:
    """The file of a module that is a plugin or in the package of one; None for other modules."""
    packages = {plugin.__name__.partition(".")[0] for plugin in _loaded.values()}
    imported = sys.modules.get(module)
    if module.partition(".")[0] not in packages:
        return None
    # Modules of a namespace have no file, and placeholders of other packages no such attribute.
    file = getattr(imported, "__file__", None)
    return None if file is None else Path(file)


def imported_files() -> dict[str, Path]:
    """The files of all imported modules of plugins and their packages, by the module's name."""
    files = {}
    for module in list(sys.modules):
        file = plugin_file(module)
        if file is not None:
            files[module] = file
    return files


def absolute_name(name: str, folder: Path | str = "") -> str:
    """The absolute path of a file; the name of a module stays."""
    if not name.endswith(".py"):
        return name
    path = Path(folder) / Path(name).expanduser()
    return str(path.absolute())


def plugin_error(error: BaseException) -> PluginError | None:
    """A PluginError with file and line of the plugin in whose code an error was raised.

    It is None if no plugin is in the traceback, or if the error is a PluginError already.
    """
    if isinstance(error, PluginError):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    plugin_frames = [frame for frame in frames if _is_in_plugin(frame.filename)]
    if not plugin_frames:
        return None
    innermost = plugin_frames[-1]
    return PluginError(
        f"plugin {innermost.filename}, line {innermost.lineno}: {type(error).__name__}: {error}"
    )


def _is_in_plugin(filename: str) -> bool:
    """Whether a file is that of a plugin, or belongs to the package of an installed one."""
    for module in _loaded.values():
        folders = _package_folders(module.__name__)
        if filename == module.__file__:
            return True
        if any(Path(filename).is_relative_to(folder) for folder in folders):
            return True
    return False


def _package_folders(module: str) -> list[str]:
    """The folders of the highest package around a module, other than a namespace or one of ours.

    A namespace, a package without `__init__.py`, may hold packages of others.
    """
    names = module.split(".")
    if names[0] in OUR_PACKAGES:
        return []
    for depth in range(1, len(names) + 1):
        package = sys.modules.get(".".join(names[:depth]))
        if getattr(package, "__file__", None) is not None:
            return list(getattr(package, "__path__", ()))
    return []


def _import_module(name: str) -> ModuleType:
    """Import a module, by its name or that of its entry point.

    Raises:
        PluginError: There is no such module, or its import fails.
    """
    points = {point.name: point.value for point in metadata.entry_points(group=GROUP)}
    module = points.get(name, name)
    if find_spec(module.split(".")[0]) is None:
        installed = f" Installed plugins: {', '.join(points)}." if points else ""
        raise PluginError(
            f"plugins: there is no module '{module}', and no file of that name.{installed}"
        )
    with _importing(module, module):
        return importlib.import_module(module)


def _import_file(path: Path) -> ModuleType:
    """Import a Python file as the module `plugin_<name of the file>`.

    Raises:
        PluginError: There is no such file, its import fails, or another plugin has its name.
    """
    if not path.is_file():
        path = _file_from_spark(path)
    spec = spec_from_file_location(f"plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise PluginError(f"plugins: {path} is no Python file")
    if spec.name in sys.modules:
        raise PluginError(
            f"plugins: {path} has the file name of another plugin. Give it another one"
        )
    # The module is registered before it runs, as by an import statement; a failure removes it.
    sys.modules[spec.name] = module = module_from_spec(spec)
    try:
        with _importing(str(path), spec.name):
            spec.loader.exec_module(module)
    except PluginError:
        del sys.modules[spec.name]
        raise
    return module


def _file_from_spark(path: Path) -> Path:
    """The copy of a file that Spark brings to its executors, which do not see its folder."""
    for folder in sys.path:
        copy = Path(folder) / path.name
        if copy.is_file():
            return copy
    raise PluginError(f"plugins: there is no file {path}")


class _SlowImports:
    """An import hook that refuses slow modules, while a plugin is imported."""

    def find_spec(self, name: str, *_: object) -> None:
        """Refuse a slow module; Python calls this for each module that is not imported yet."""
        if name in _SLOW:
            raise ImportError(
                f"{name} slows every command down; import it inside the function that uses it"
            )


@contextmanager
def _importing(name: str, module: str) -> Iterator[None]:
    """Prepare for the import of a plugin in the context.

    In it, slow modules are refused, and `being_imported` returns `module`. An error becomes a
    PluginError with the line of the plugin, which messages call `name`.
    """
    hook = _SlowImports()
    sys.meta_path.insert(0, hook)
    _being_imported.append(module)
    try:
        yield
    except (Exception, SystemExit) as cause:
        line = _line_of_error(cause, name)
        raise PluginError(f"plugin {name}, line {line}: {type(cause).__name__}: {cause}") from cause
    finally:
        _being_imported.pop()
        sys.meta_path.remove(hook)


def _line_of_error(error: BaseException, plugin: str) -> int | None:
    """The line of a plugin at which its import failed: that of the innermost call in its file.

    `plugin` is the path of a file or the name of a module.
    """
    if isinstance(error, SyntaxError):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    module_path = f"{plugin.replace('.', os.sep)}.py"
    plugin_frames = [frame for frame in frames if frame.filename.endswith((plugin, module_path))]
    return plugin_frames[-1].lineno if plugin_frames else frames[-1].lineno
