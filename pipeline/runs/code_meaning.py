"""The meaning of code for a result: syntax trees of the modules that an entry point imports.

A statement is left out only for what it is, never for a name in it: comments, docstrings, texts of
raised errors, imports for type checkers, and types of functions that no decorator sees change no
result. A call counts, whatever it is called; if only messages changed, `plan --accept` says so.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Final, NamedTuple

from hep_core import plugins
from pipeline.runs.own_folders import MARKER

#: The folder that holds the packages.
ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = (
    *("hep_core", "ingestion", "features", "models", "training", "pipeline"),
    *("hep_simulation", "hep_studies"),
)

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
    digest: str
    imports: frozenset[str]


def code_digests(entry_points: Iterable[str]) -> dict[str, str]:
    """Digest of the meaning of every module that the entry points run, by name.

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
        if name in digests or file is None:
            continue
        modules = {name: file}
        if not _is_ours(name):
            modules = _plugin_modules(name, file)
        elif "." in name:
            # An import also runs the packages around the module.
            pending.append(name.rpartition(".")[0])
        for module_name, path in modules.items():
            try:
                module = _read_module(module_name, path, path.stat().st_mtime_ns)
            except FileNotFoundError:
                # It vanished since its folder was listed, so that nothing can import it.
                continue
            digests[module_name] = module.digest
            pending += [name for name in module.imports if _is_followed(module_name, name)]
    return dict(sorted(digests.items()))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES


def _plugin_modules(name: str, file: Path) -> dict[str, Path]:
    """All modules of the package of a plugin, by name; of a plugin without a package, its module.

    Other files count where a module names them: notebooks, logs and events may lie there too.
    """
    package_folder = file.parent
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    if not package or not (package_folder / "__init__.py").is_file():
        return {name: file}
    top_folder = _top_package(package_folder)
    while package_folder != top_folder:
        package_folder, package = package_folder.parent, package.rpartition(".")[0]
    modules = {}
    for path in sorted(_modules_below(package_folder)):
        relative_path = path.relative_to(package_folder)
        module_path = relative_path.with_suffix("")
        if path.name == "__init__.py":
            module_path = relative_path.parent
        modules[".".join([package, *module_path.parts])] = path
    return modules


def _top_package(folder: Path) -> Path:
    """The folder of the highest package around a module in a folder.

    The folder itself if there is none.
    """
    while (folder / "__init__.py").is_file() and (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _modules_below(folder: Path) -> Iterator[Path]:
    """Python files below a folder.

    Hidden files, such as those of editors, and outputs of this pipeline are left out.
    """
    for parent, subfolders, names in os.walk(folder):
        if MARKER in names:
            subfolders.clear()
            continue
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in names:
            if name.endswith(".py") and not name.startswith("."):
                yield Path(parent, name)


def _is_followed(importer: str, imported: str) -> bool:
    if importer in REGISTRIES and imported.rpartition(".")[0] == importer.rpartition(".")[0]:
        return False
    return not imported.startswith("pipeline.") or imported.startswith(_SHELL_WITH_RESULTS)


def _file_of(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file if file.is_file() else plugins.plugin_file(module)


@cache
def _read_module(name: str, file: Path, _modified: int) -> _Module:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    imports = _imports(tree, package)
    names_and_constants: set[object] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names_and_constants.add(node.id)
        elif isinstance(node, ast.Constant):
            names_and_constants.add(node.value)
    digest = hashlib.sha256(ast.unparse(_Meaning().visit(tree)).encode())
    for path in _data_files(name, file, names_and_constants):
        digest.update(path.read_bytes())
    return _Module(digest.hexdigest(), frozenset(imports))


def _data_files(name: str, file: Path, names_and_constants: Collection[object]) -> list[Path]:
    """The files that are no code and that a module may read."""
    if not _is_ours(name):
        return _named_files({file.parent, _top_package(file.parent)}, names_and_constants)
    # A template includes others beside it, so that all files that are no code count with the module
    # that names one, or that knows its own location.
    paths = sorted(_data_in(file.parent))
    hints = {*_LOCATION_NAMES, *(path.name for path in paths)}
    return paths if hints & set(names_and_constants) else []


def _named_files(roots: Collection[Path], constants: Collection[object]) -> list[Path]:
    """Files that a plugin names, in its folders or a folder that it names.

    Other files there may be events and runs.
    """
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
    """Files that are no code, in a folder and those below it that are no packages."""
    for path in folder.iterdir():
        if path.is_file() and path.suffix not in {".py", ".typed"}:
            yield path
        elif path.is_dir() and path.name != "__pycache__" and not any(path.glob("*.py")):
            yield from _data_in(path)


def _imports(tree: ast.Module, package: str) -> set[str]:
    """Names that may be our modules: what is imported, also inside functions."""
    names: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and _is_for_checkers(node):
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            names.add(module)
            names.update(f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {name for name in names if _is_ours(name)}


class _Meaning(ast.NodeTransformer):
    """Leaves out what changes no result.

    Types of arguments count where a decorator may read them.
    """

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        return node.orelse if _is_for_checkers(node) else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc.args = [arg for arg in node.exc.args if not _is_text(arg)]
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if not node.decorator_list:
            node.returns = None
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
        return self.generic_visit(node)


def _is_for_checkers(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_text(node: ast.expr) -> bool:
    """Whether an argument of an error is its message."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    return isinstance(node, ast.JoinedStr)
