"""The lists of code that stages name: complete, and of files that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from pipeline.fingerprint import PACKAGES, ROOT, code_digests, source_files
from pipeline.runner import STAGES
from pipeline.stages.base import Stage

#: Words for users; no result hangs on them.
NO_RESULTS = {"errors.py", "__init__.py", "__main__.py"}


def modules_imported_by(path: Path) -> set[Path]:
    """Source files of our packages (but the shell) that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES[1:]:
            module = ROOT / Path(*node.module.split("."))
            candidates = [module.with_suffix(".py"), *(module / f"{alias.name}.py" for alias in node.names)]
            found |= {candidate for candidate in candidates if candidate.is_file()}
    return found


def everything_run_by(stage: Stage) -> set[Path]:
    reached: set[Path] = set()
    waiting = {ROOT / "pipeline" / "stages" / f"{stage.name}.py"}
    while waiting:
        path = waiting.pop()
        new = modules_imported_by(path) - reached
        reached |= new
        waiting |= new
    return {path for path in reached if path.name not in NO_RESULTS}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_names_all_code_that_it_runs(stage: Stage) -> None:
    named = {path for name in stage.code for path in source_files(name)}
    # What is imported for a plot or a spec without being run is listed too: one stale run too many beats one too few.
    assert {str(path.relative_to(ROOT)) for path in everything_run_by(stage) - named} == set()


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_all_named_code_exists(stage: Stage) -> None:
    assert len(code_digests(stage.code)) == len(stage.code)


def test_code_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        code_digests(["features/no_such_file.py"])


def test_a_change_in_a_comparison_or_a_search_leaves_the_trained_model_as_it_is() -> None:
    (train,) = (stage for stage in STAGES if stage.name == "train")
    files = {path.relative_to(ROOT) for name in train.code for path in source_files(name)}
    assert Path("training/algorithms/ar_sgd.py") in files
    # What a search decides is trained with; how it is found is not.
    others = {file for file in files if file.parts[1] in {"comparison", "gridsearch", "simulation"}}
    assert others == {Path("training/gridsearch/choice.py")}
