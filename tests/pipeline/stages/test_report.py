"""Tables of `compare` as inputs of the report."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from pipeline.errors import RunFolderError
from pipeline.stages.base import StageInputs
from pipeline.stages.report import Report


def find_inputs(run_dir: Path) -> StageInputs:
    config: Any = SimpleNamespace(run_dir=run_dir)
    return Report().find_inputs(config, None, Console())


@pytest.fixture
def table_path(tmp_path: Path) -> Path:
    """Where `compare` writes the table of the study `mine` in the run folder `tmp_path`."""
    path = tmp_path / "compare" / "mine" / "table.json"
    path.parent.mkdir(parents=True)
    return path


def test_a_new_comparison_in_the_run_folder_makes_the_report_stale(
    tmp_path: Path, table_path: Path
) -> None:
    # A study that is under way has no table.
    (tmp_path / "compare" / "other").mkdir()
    assert find_inputs(tmp_path) == StageInputs({}, {})

    def write_table(accuracy: str) -> dict[str, Any]:
        head = {"title": "A study", "heads": [], "workers": "ranks", "events": "none", "notes": []}
        table = {**head, "rows": [["sgd", accuracy]]}
        table_path.write_text(json.dumps(table))
        return table

    write_table("90 %")
    first = find_inputs(tmp_path)
    table = write_table("91 %")
    second = find_inputs(tmp_path)

    assert first.inputs.keys() == {"compare/mine"}
    assert first.inputs["compare/mine"].name == "comparison mine"
    assert second.details == {"mine": table}
    assert second.inputs != first.inputs
    write_table("91 %")
    assert find_inputs(tmp_path).inputs == second.inputs


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"title": "A study"}'])
def test_a_damaged_table_is_named_with_what_to_do(
    tmp_path: Path, table_path: Path, text: str
) -> None:
    table_path.write_text(text)

    with pytest.raises(
        RunFolderError, match=r"mine/table.json is damaged: .* Run `compare` for this study again"
    ):
        find_inputs(tmp_path)
