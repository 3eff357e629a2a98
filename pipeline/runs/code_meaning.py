"""The meaning of code for a result: syntax trees of the modules that an entry point imports.

Comments, docstrings, texts of errors and other words for users, types of functions, the order of imports, and
statements that only print or log change no result, so they do not count. Types of fields do: pydantic reads them.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

#: The folder that holds the packages.
ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("pipeline", "ingestion", "features", "models", "training")

#: Modules that change no result: they print, start, probe, watch or show progress. Their imports are not followed.
EXEMPT: Final = frozenset(
    {
        "ingestion.errors",
        "ingestion.secrets",
        "ingestion.storage",
        "features.errors",
        "features.memory",
        "models.errors",
        "training.agents.spark_job",
        "training.errors",
        "training.launching.launcher",
        "training.launching.probing",
        "training.launching.rank_reports",
        "training.loop.progress",
        "training.loop.scalars",
        "training.loop.watchdog",
        "training.transports.self_test",
    }
)
#: The modules of the shell that compute outputs of stages. The config counts by its values.
_SHELL_WITH_RESULTS: Final = ("pipeline.stages.", "pipeline.reporting.", "pipeline.runs.trained_models")
_SHELL_WITHOUT: Final = frozenset({"pipeline.stages.base", "pipeline.stages.table"})
#: Registries, which import all methods of a kind. Only the methods that the config chooses run; they are entry points.
#: Of a registry only functions and classes count: a further line in its table changes no result.
REGISTRIES: Final = frozenset(
    {"training.algorithms.registry", "training.workloads.registry", "models.networks.registry"}
)
#: Files beside a module that it fills or includes, if it loads templates at all.
_TEMPLATES: Final = (".html", ".css", ".js")
_LOADER: Final = "FileSystemLoader"
#: Calls that only affect what users read.
_SPEAKING: Final = frozenset({"print", "say", "note", "warn", "debug", "info", "warning"})
#: Arguments that only users read, by what is called: places of texts, and keywords.
_WORDS: Final[dict[str, tuple[int | str, ...]]] = {
    "bar": (0, 1, 2),
    "Bar": (1, 2),
    "Check": (0, 2),
    "Feature": (2,),
    "Result": ("summary",),
}
#: Functions that only make sentences for users.
SENTENCES: Final = frozenset({"track_hint", "unit_hint", "advice", "_without_effect", "_about_slowmo"})
_WITHOUT_MEANING: Final = frozenset({"ctx", "kind", "returns", "type_comment"})
#: Modules of types; what is made of them stands where it is used.
_TYPES: Final = frozenset({"collections.abc", "typing"})
_IMPORTS: Final = (ast.Import, ast.ImportFrom, ast.alias)


class _Module(NamedTuple):
    digest: str
    imports: frozenset[str]


def code_digests(entry_points: Iterable[str]) -> dict[str, str]:
    """Digest of the meaning of every module that the entry points run, by name.

    Args:
        entry_points: Names of modules.

    Raises:
        FileNotFoundError: A module does not exist.

    Examples:
        >>> "features.isolation" in code_digests(["pipeline.stages.features"])
        True
    """
    found: dict[str, str] = {}
    waiting = list(entry_points)
    for name in waiting:
        if _file_of(name) is None:
            raise FileNotFoundError(f"{name} is an entry point of a stage, but there is no such module")
    while waiting:
        name = waiting.pop()
        file = _file_of(name)
        if name in found or file is None:
            continue
        module = _read(name, file, file.stat().st_mtime_ns)
        found[name] = module.digest
        waiting += [each for each in module.imports if _is_followed(name, each)]
    return dict(sorted(found.items()))


def _is_followed(importer: str, imported: str) -> bool:
    if imported in EXEMPT or imported in _SHELL_WITHOUT:
        return False
    if importer in REGISTRIES and imported.rpartition(".")[0] == importer.rpartition(".")[0]:
        return False
    return not imported.startswith("pipeline.") or imported.startswith(_SHELL_WITH_RESULTS)


def _file_of(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file if file.is_file() else None


@cache
def _read(name: str, file: Path, _modified: int) -> _Module:
    imports: set[str] = set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    text = _canonical(tree, imports)
    if name in REGISTRIES:
        text = _canonical([node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)], set())
    digest = hashlib.sha256(text.encode())
    if _LOADER in text:
        for template in sorted(path for path in file.parent.iterdir() if path.suffix in _TEMPLATES):
            digest.update(template.read_bytes())
    return _Module(digest.hexdigest(), frozenset(imports))


def _canonical(node: object, imports: set[str]) -> str:
    """A syntax tree as text, equal under every Python: without positions, contexts, docstrings and empty fields.

    Args:
        node: A node, a list of nodes, or a plain value.
        imports: Collects the names of our modules that are imported, also inside functions.
    """
    if isinstance(node, list):
        texts = []
        counting = [each for each in node if not (_only_speaks(each) or _only_types(each))]
        for is_import, group in groupby(counting, key=lambda each: isinstance(each, _IMPORTS)):
            found = [_canonical(each, imports) for each in group]
            texts += sorted(found) if is_import else found
        return f"[{','.join(texts)}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.If) and _is_for_checkers(node):
        return _canonical(node.orelse, imports)
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
        imports.add(node.module)
        imports.update(f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Import):
        imports.update(alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES)
    elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        node.exc.args = [arg for arg in node.exc.args if not _is_text(arg)]
    elif isinstance(node, ast.Call):
        words = _WORDS.get(_called(node), ())
        node.args = [arg for place, arg in enumerate(node.args) if place not in words or not _is_text(arg)]
        node.keywords = [each for each in node.keywords if each.arg not in words]
    elif isinstance(node, ast.FunctionDef) and node.name in SENTENCES:
        node.body = []
    parts = [type(node).__name__]
    for name in node._fields:
        value = getattr(node, name, None)
        if name not in _WITHOUT_MEANING and value is not None and value != [] and not _is_type(node, name):
            parts.append(f"{name}={_canonical(value, imports)}")
    return f"({' '.join(parts)})"


def _only_speaks(node: object) -> bool:
    """Whether a statement is a docstring, also of an attribute, a call that prints or logs, or a part of a summary."""
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
        return _is_text(node.value) and all(isinstance(each, ast.Name) and each.id == "summary" for each in targets)
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Constant):
        return isinstance(node.value.value, str)
    return isinstance(node.value, ast.Call) and _called(node.value) in _SPEAKING


def _called(call: ast.Call) -> str:
    """The name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _only_types(node: object) -> bool:
    """Whether a statement only imports types."""
    if isinstance(node, ast.If):
        return _is_for_checkers(node) and not node.orelse
    return isinstance(node, ast.ImportFrom) and node.module in _TYPES


def _is_for_checkers(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_type(node: ast.AST, field: str) -> bool:
    """Whether a field of a node is the type of an argument of a function."""
    return isinstance(node, ast.arg) and field == "annotation"


def _is_text(node: ast.expr) -> bool:
    """Whether an argument of an error is its message."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
