"""What the report reads beside the other stages."""

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


def found_in(run_dir: Path) -> StageInputs:
    config: Any = SimpleNamespace(run_dir=run_dir)
    return Report().find_inputs(config, None, Console())


def test_comparisons_in_the_run_folder_are_inputs_so_that_a_new_one_makes_the_report_stale(
    tmp_path: Path,
) -> None:
    assert found_in(tmp_path) == StageInputs({}, {})
    table = tmp_path / "compare" / "mine" / "table.json"
    table.parent.mkdir(parents=True)
    # A study that is under way.
    (tmp_path / "compare" / "other").mkdir()
    document = {"title": "A study", "heads": [], "workers": "ranks", "events": "none", "notes": []}
    inputs = []
    for rows in ([["sgd", "90 %"]], [["sgd", "91 %"]], [["sgd", "91 %"]]):
        table.write_text(json.dumps({**document, "rows": rows}))
        inputs.append(found_in(tmp_path))
    assert inputs[0].inputs.keys() == {"compare/mine"}
    assert inputs[0].inputs["compare/mine"].name == "comparison mine"
    assert inputs[1].details == {"mine": {**document, "rows": [["sgd", "91 %"]]}}
    first, second, same = (input_.inputs for input_ in inputs)
    assert first != second == same


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"title": "A study"}'])
def test_a_damaged_table_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    table = tmp_path / "compare" / "mine" / "table.json"
    table.parent.mkdir(parents=True)
    table.write_text(text)
    with pytest.raises(
        RunFolderError, match=r"mine/table.json is damaged: .* Run `compare` for this study again"
    ):
        found_in(tmp_path)
