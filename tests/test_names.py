"""Names of the source: one class name has one meaning in the whole house, and a name has one address."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "hep_core",
    "ingestion",
    "features",
    "models",
    "training",
    "pipeline",
    "hep_simulation",
    "hep_studies",
)
#: What modules pass on of others; they say why.
PASSED_ON = {
    "training/algorithms/registry.py": {"METHODS", "SlowMo", "SlowMoSettings", "StaleSynchronous"},
    "pipeline/api.py": {"EventClassifier", "FeatureSettings", "features_of", "load_classifier"},
}


def test_no_two_classes_have_the_same_name() -> None:
    homes = defaultdict(list)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    homes[node.name.lstrip("_")].append(str(path.relative_to(ROOT)))
    assert len(homes) > 100
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def passed_on(tree: ast.Module) -> set[str]:
    """Names in `__all__` that the module does not define, and those that it imports `as` themselves."""
    listed: set[str] = set()
    defined: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            defined.add(node.name)
        stored = {
            each.id
            for each in ast.walk(node)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }
        defined |= stored
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and "__all__" in stored:
            listed |= {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
    imports = [each for each in ast.walk(tree) if isinstance(each, (ast.Import, ast.ImportFrom))]
    return listed - defined | {
        alias.name for each in imports for alias in each.names if alias.asname == alias.name
    }


@pytest.mark.slow
def test_no_name_has_two_addresses() -> None:
    actual = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            modules = (
                {each.stem for each in path.parent.iterdir()}
                if path.name == "__init__.py"
                else set()
            )
            if names := passed_on(ast.parse(path.read_text(encoding="utf-8"))) - modules:
                actual[str(path.relative_to(ROOT))] = names
    assert actual == PASSED_ON
