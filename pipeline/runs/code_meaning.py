"""What code means for a result: the modules that an entry point imports, as syntax trees without words.

Comments, docstrings, the texts of errors and statements that only print or log change no result, so they do not count.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

#: The folder that holds the packages.
ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("pipeline", "ingestion", "features", "models", "training")

#: Modules that change no result: they speak, start, probe, watch or show progress. Nothing behind them is followed.
EXEMPT: Final = frozenset(
    {
        "ingestion.errors",
        "ingestion.secrets",
        "features.errors",
        "features.memory",
        "models.errors",
        "training.errors",
        "training.launching.launcher",
        "training.launching.probing",
        "training.launching.rank_reports",
        "training.loop.scalars",
        "training.loop.watchdog",
        "training.transports.self_test",
    }
)
#: Of the shell, only these compute what a stage writes. The config counts by its values.
_SHELL_WITH_RESULTS: Final = ("pipeline.stages.", "pipeline.reporting.", "pipeline.runs.models_on_disk")
_SHELL_WITHOUT: Final = frozenset({"pipeline.stages.base", "pipeline.stages.table"})
#: They name all there are of a kind; of those only the ones that a config chooses run, and these are entry points.
REGISTRIES: Final = frozenset({"training.algorithms.registry", "models.networks.registry"})
#: Files beside a module that it fills.
_TEMPLATES: Final = (".html", ".css")
#: Calls whose only effect is on what users read.
_SPEAKING: Final = frozenset({"print", "say", "note", "warn", "debug", "info", "warning"})
_WITHOUT_MEANING: Final = frozenset({"ctx", "kind", "type_comment"})


class _Module(NamedTuple):
    digest: str
    imports: frozenset[str]


def code_digests(entry_points: Iterable[str]) -> dict[str, str]:
    """Digest of the meaning of every module that some entry points run, by its name.

    Args:
        entry_points: Names of modules.

    Raises:
        FileNotFoundError: One does not exist.

    Examples:
        >>> "features.isolation" in code_digests(["pipeline.stages.features"])
        True
    """
    found: dict[str, str] = {}
    waiting = list(entry_points)
    for name in waiting:
        if _file_of(name) is None:
            raise FileNotFoundError(f"{name} is an entry point of a stage, and there is no such module")
    while waiting:
        name = waiting.pop()
        file = _file_of(name)
        if name in found or file is None:
            continue
        module = _read(file, file.stat().st_mtime_ns)
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
def _read(file: Path, _modified: int) -> _Module:
    imports: set[str] = set()
    text = _canonical(ast.parse(file.read_text(encoding="utf-8")), imports)
    digest = hashlib.sha256(text.encode())
    if file.parent.name == "reporting":
        for template in sorted(path for path in file.parent.iterdir() if path.suffix in _TEMPLATES):
            digest.update(template.read_bytes())
    return _Module(digest.hexdigest(), frozenset(imports))


def _canonical(node: object, imports: set[str]) -> str:
    """A syntax tree as text, the same under every Python: without places, contexts, words and what is empty.

    Args:
        node: A node, a list of nodes, or a plain value.
        imports: Gets the names of our modules that are imported, inside functions too.
    """
    if isinstance(node, list):
        return f"[{','.join([_canonical(each, imports) for each in node if not _only_speaks(each)])}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return _canonical(node.orelse, imports)
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
        imports.add(node.module)
        imports.update(f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Import):
        imports.update(alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES)
    elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        node.exc.args = [arg for arg in node.exc.args if not _is_text(arg)]
    parts = [type(node).__name__]
    for name in node._fields:
        value = getattr(node, name, None)
        if name not in _WITHOUT_MEANING and value is not None and value != []:
            parts.append(f"{name}={_canonical(value, imports)}")
    return f"({' '.join(parts)})"


def _only_speaks(node: object) -> bool:
    """Whether a statement is a docstring, also of an attribute, or a call that only prints or logs."""
    if not isinstance(node, ast.Expr):
        return False
    value = node.value
    if isinstance(value, ast.Constant):
        return isinstance(value.value, str)
    called = value.func if isinstance(value, ast.Call) else None
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) in _SPEAKING


def _is_text(node: ast.expr) -> bool:
    """Whether an argument of an error is its message."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
