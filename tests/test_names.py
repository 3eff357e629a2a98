"""Names of the source: a class name has one meaning, and a name has one address."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pipeline.runs.code_meaning import PACKAGES

ROOT = Path(__file__).resolve().parents[1]
#: Names that modules re-export, with a reason stated there.
REEXPORTED = {
    "training/algorithms/registry.py": {"METHODS", "SlowMo", "SlowMoSettings", "StaleSynchronous"},
    "pipeline/api.py": {"EventClassifier", "FeatureSettings", "features_of", "load_classifier"},
}


def parsed_modules() -> Iterator[tuple[Path, ast.Module]]:
    """All modules of the source, with their syntax trees."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_no_two_classes_have_the_same_name() -> None:
    files_by_class = defaultdict(list)
    for path, tree in parsed_modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                files_by_class[node.name.lstrip("_")].append(str(path.relative_to(ROOT)))

    assert len(files_by_class) > 100
    for class_name, files in files_by_class.items():
        assert len(files) == 1, class_name


def reexported_names(tree: ast.Module) -> set[str]:
    """Names of `__all__` that a module does not define, and imports `as` themselves."""
    exported: set[str] = set()
    defined: set[str] = set()
    imported_as_themselves: set[str] = set()
    for node in tree.body:
        assigned = assigned_names(node)
        defined |= assigned
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            defined.add(node.name)
        if "__all__" in assigned:
            constants = [child for child in ast.walk(node) if isinstance(child, ast.Constant)]
            exported |= {str(constant.value) for constant in constants}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            aliases = [alias for alias in node.names if alias.asname == alias.name]
            imported_as_themselves |= {alias.name for alias in aliases}
    return exported - defined | imported_as_themselves


def assigned_names(statement: ast.stmt) -> set[str]:
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


@pytest.mark.slow
def test_no_name_has_two_addresses() -> None:
    reexported = {}
    for path, tree in parsed_modules():
        names = reexported_names(tree)
        if path.name == "__init__.py":
            names -= {file.stem for file in path.parent.iterdir()}
        if names:
            reexported[str(path.relative_to(ROOT))] = names

    assert reexported == REEXPORTED


#: Names that fit everything, so that a reader must look up what they hold.
VAGUE = frozenset(
    re.findall(
        r"\w+",
        """each found given this that other others of one both all_ kept shown what which there here
        chosen made told said say words put left own wanted whole rest part parts after before of_all
        thing things content kind place number known done again plus""",
    )
)


def bound_names(tree: ast.Module) -> list[str]:
    """Names that a module binds: variables, loop variables and parameters."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
    return names


def share_of_vague_names(folders: Sequence[str]) -> float:
    """Share of the names in some folders that do not say what they hold."""
    names = []
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            names += bound_names(ast.parse(path.read_text(encoding="utf-8")))
    vague = [name for name in names if name.strip("_") in VAGUE]
    return len(vague) / len(names)


@pytest.mark.slow
@pytest.mark.parametrize("folders", [PACKAGES, ("tests",)], ids=["source", "tests"])
def test_names_say_what_they_hold(folders: Sequence[str]) -> None:
    assert share_of_vague_names(folders) <= 0.01


def test_vague_names_are_counted() -> None:
    names = bound_names(ast.parse("for each in events:\n    kept = lambda found: each.pt"))

    assert sorted(names) == ["each", "found", "kept"]
