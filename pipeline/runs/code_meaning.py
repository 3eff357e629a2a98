"""The meaning of code for a result: syntax trees of the modules that an entry point imports.

A statement is left out only for what it is, never for a name in it: comments, docstrings, texts of
raised errors, imports for type checkers, and types of functions that no decorator sees change no
result. A call counts, whatever it is called; if only messages changed, `plan --accept` says so.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Final, NamedTuple

from hep_core import plugins
from pipeline.runs.own_folders import MARKER

#: The folder that holds the packages.
ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = plugins.OUR_PACKAGES

#: The rooms of the shell that compute outputs of stages. The config counts by its values; the other
#: rooms start, watch, print and store. A stage whose result depends on one of their modules names
#: it as an entry point.
_SHELL_WITH_RESULTS: Final = (
    "pipeline.stages.",
    "pipeline.reporting.",
    "pipeline.configuration.simulate_section",
)
#: Registries, which import all methods of a kind. Only the methods that the config chooses run;
#: they are entry points.
REGISTRIES: Final = frozenset(
    {"training.algorithms.registry", "training.workloads.registry", "models.networks.registry"}
)
#: By these names a module finds files beside it.
_LOCATION_NAMES: Final = frozenset({"__file__", "__name__", "__package__", "__path__", "__spec__"})
#: Longest name of a file.
_MAX_NAME_LENGTH: Final = 255


class _Module(NamedTuple):
    """What is known of one Python module after it was read."""

    digest: str
    """SHA-256 of its code without what changes no result, and of the data files that it names."""
    imports: frozenset[str]
    """Names of our packages and modules that it imports; some may be functions or classes."""


#: What was read of each plugin when it was loaded, by name and file of each of its modules.
_loaded_plugins: Final[dict[tuple[str, Path], Mapping[str, _Module]]] = {}


def code_digests(entry_points: Iterable[str]) -> dict[str, str]:
    """Return a digest of the meaning of every module that the entry points run, by name.

    The search begins with the entry points and follows their imports, and those of the imported
    modules, until no new module is found. Two digests are equal if the modules differ only in
    what changes no result, such as comments (see `_Meaning`). Plugins count as they were when this
    process loaded them.

    Args:
        entry_points: Dotted names of modules.

    Raises:
        FileNotFoundError: An entry point is no module.

    Examples:
        >>> "features.isolation" in code_digests(["pipeline.stages.features"])
        True
    """
    pending = list(entry_points)
    for name in pending:
        if _file_of(name) is None:
            raise FileNotFoundError(
                f"{name} is an entry point of a stage, but there is no such module"
            )
    digests: dict[str, str] = {}
    while pending:
        name = pending.pop()
        file = _file_of(name)
        # An imported name without a file is a function or a class of a module.
        if name in digests or file is None:
            continue
        if not _is_ours(name):
            # Imports between modules of a plugin are not followed, so its whole package counts.
            modules = _plugin_as_loaded(name, file)
        else:
            modules = _read_modules({name: file})
            # An import also runs the packages around the module.
            if "." in name:
                pending.append(name.rpartition(".")[0])
        for module_name, module in modules.items():
            digests[module_name] = module.digest
            pending += [name for name in module.imports if _is_followed(module_name, name)]
    return dict(sorted(digests.items()))


def plugin_digest(module: str) -> str:
    """Return a digest of the meaning of the whole plugin that has a module.

    It does not contain names of modules, nor our code that the plugin imports. It is empty for
    modules of ours, and for code without a file, such as that of a notebook.
    """
    file = _file_of(module)
    if file is None or _is_ours(module):
        return ""
    digest = hashlib.sha256()
    for plugin_module in _plugin_as_loaded(module, file).values():
        digest.update(plugin_module.digest.encode())
    return digest.hexdigest()


def _read_loaded_plugins() -> None:
    """Read the code of all plugins of this process that it has not read yet."""
    for module, file in plugins.imported_files().items():
        if not _is_ours(module):
            _plugin_as_loaded(module, file)


plugins.after_loading(_read_loaded_plugins)


def _plugin_as_loaded(module: str, file: Path) -> Mapping[str, _Module]:
    """Return the modules of the plugin that has a module, as they were when it was loaded.

    A process keeps the code that it has imported, whatever the files become.
    """
    if (module, file) not in _loaded_plugins:
        files = _plugin_modules(module, file)
        package = _read_modules(files)
        # One reading serves all modules of the package.
        for item in {module: file, **files}.items():
            _loaded_plugins[item] = package
    return _loaded_plugins[module, file]


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES


def _plugin_modules(name: str, file: Path) -> dict[str, Path]:
    """Return the files of all modules of a plugin's package, by dotted name.

    A plugin is code of a user, given as a file or as a module. The package is the highest folder
    around it with an `__init__.py`. A plugin outside a package is one module. Other files count
    only where a module names them: notebooks, logs and events may lie there too.
    """
    package_folder = file.parent
    # The file `__init__.py` is the package itself; any other module lies in the package above it.
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    if not package or not (package_folder / "__init__.py").is_file():
        return {name: file}
    # Folder and dotted name climb together, one level a step.
    top_folder = _top_package(package_folder)
    while package_folder != top_folder:
        package_folder, package = package_folder.parent, package.rpartition(".")[0]
    modules = {}
    for path in sorted(_modules_below(package_folder)):
        relative_path = path.relative_to(package_folder)
        module_path = relative_path.with_suffix("")
        # A package is imported by the name of its folder.
        if path.name == "__init__.py":
            module_path = relative_path.parent
        modules[".".join([package, *module_path.parts])] = path
    return modules


def _top_package(folder: Path) -> Path:
    """Return the folder of the highest package around a folder.

    It climbs as long as both the folder and its parent hold an `__init__.py`. If the folder is
    in no package, it is returned itself.
    """
    while (folder / "__init__.py").is_file() and (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _modules_below(folder: Path) -> Iterator[Path]:
    """Yield the Python files below a folder.

    Hidden files, such as those of editors, and outputs of this pipeline are left out. Such
    outputs lie in folders with a marker file.
    """
    for parent, subfolders, names in os.walk(folder):
        # `os.walk` descends only into the names that stay in this list.
        if MARKER in names:
            subfolders.clear()
            continue
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in names:
            if name.endswith(".py") and not name.startswith("."):
                yield Path(parent, name)


def _is_followed(importer: str, imported: str) -> bool:
    """Return whether an imported module counts for the result of its importer.

    Two kinds do not: the methods beside a registry, of which the config chooses some, and modules
    of `pipeline` that only start, watch, print or store.
    """
    if importer in REGISTRIES and imported.rpartition(".")[0] == importer.rpartition(".")[0]:
        return False
    return not imported.startswith("pipeline.") or imported.startswith(_SHELL_WITH_RESULTS)


def _file_of(module: str) -> Path | None:
    """Return the source file of a module of ours or of a plugin; None if there is none."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file if file.is_file() else plugins.plugin_file(module)


def _read_modules(files: Mapping[str, Path]) -> dict[str, _Module]:
    """Return what is known of some modules, by name, from the files of their code."""
    modules = {}
    for name, file in files.items():
        try:
            modules[name] = _read_module(name, file, file.stat().st_mtime_ns)
        except FileNotFoundError:
            # It vanished since its folder was listed, so that nothing can import it.
            continue
    return modules


@cache
def _read_module(name: str, file: Path, _modified: int) -> _Module:
    """Parse a module, and return the digest of its meaning with the names that it imports.

    The digest is over its syntax tree, printed without what changes no result, and over the data
    files that it may read. `_modified`, the time of the last change [ns], is part of the cache's
    key, so that a changed file is read again.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    imports = _imports(tree, package)
    names_and_constants: set[object] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names_and_constants.add(node.id)
        elif isinstance(node, ast.Constant):
            names_and_constants.add(node.value)
    # `_Meaning` changes the tree in place, so imports and names are collected before.
    digest = hashlib.sha256(ast.unparse(_Meaning().visit(tree)).encode())
    for path in _data_files(name, file, names_and_constants):
        digest.update(path.read_bytes())
    return _Module(digest.hexdigest(), frozenset(imports))


def _data_files(name: str, file: Path, names_and_constants: Collection[object]) -> list[Path]:
    """Return the files, other than Python code, that a module may read.

    Args:
        name: Dotted name of the module.
        file: Its source file.
        names_and_constants: All variable names and literal values in its code.
    """
    if not _is_ours(name):
        return _named_files({file.parent, _top_package(file.parent)}, names_and_constants)
    # A template includes others beside it, so that all files that are no code count with the module
    # that names one, or that knows its own location.
    paths = sorted(_data_in(file.parent))
    hints = {*_LOCATION_NAMES, *(path.name for path in paths)}
    return paths if hints & set(names_and_constants) else []


def _named_files(roots: Collection[Path], constants: Collection[object]) -> list[Path]:
    """Return the files that a plugin names, in its folders or in a folder that it names.

    Every short text in the code may be the name of a file or folder; those that exist count.
    Other files there may be events and runs.

    Args:
        roots: Folders of the plugin.
        constants: All literal values in its code, of any type.
    """
    # The operating system refuses longer names and those with a zero byte.
    names = [
        constant
        for constant in constants
        if isinstance(constant, str)
        and 0 < len(constant) < _MAX_NAME_LENGTH
        and "\0" not in constant
    ]
    folders = list(roots)
    for root in roots:
        folders += [root / name for name in names if (root / name).is_dir()]
    paths = {folder / name for folder in folders for name in names}
    return sorted(path for path in paths if path.is_file())


def _data_in(folder: Path) -> Iterator[Path]:
    """Yield the files other than code in a folder, and in its subfolders without Python files."""
    for path in folder.iterdir():
        if path.is_file() and path.suffix not in {".py", ".typed"}:
            yield path
        elif path.is_dir() and path.name != "__pycache__" and not any(path.glob("*.py")):
            yield from _data_in(path)


def _imports(tree: ast.Module, package: str) -> set[str]:
    """Return the imported names that may be our modules, also of imports inside functions.

    Imports for type checkers are left out, since they never run.

    Args:
        tree: The syntax tree of the module.
        package: The package around it, from which relative imports start.
    """
    names: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and _is_for_checkers(node):
            # Only the `else` of `if TYPE_CHECKING` runs.
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            names.add(module)
            # The name after `import` may be a module of a package, or a function of a module.
            names.update(f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {name for name in names if _is_ours(name)}


class _Meaning(ast.NodeTransformer):
    """Removes from a syntax tree what changes no result; it changes the tree in place.

    Removed are docstrings, code for type checkers, the texts of raised errors, and the types of
    functions without a decorator (a decorator may read them). Comments are in no syntax tree.
    """

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Remove a statement that is only a literal, such as a docstring."""
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """Replace `if TYPE_CHECKING` by the statements of its `else`."""
        self.generic_visit(node)
        return node.orelse if _is_for_checkers(node) else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        """Remove the texts from the arguments of a raised error; its class stays."""
        if isinstance(node.exc, ast.Call):
            node.exc.args = [arg for arg in node.exc.args if not _is_text(arg)]
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Remove the types of arguments and result from a function without a decorator.

        Decorators, for example of pydantic, may act by types, so theirs count.
        """
        if not node.decorator_list:
            node.returns = None
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
        return self.generic_visit(node)


def _is_for_checkers(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_text(node: ast.expr) -> bool:
    """Return whether an argument of an error is its message.

    A message is a text, an f-string, or an operation (such as `+`) with one of these on a side.
    """
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    return isinstance(node, ast.JoinedStr)
