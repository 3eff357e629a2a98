"""A run that cannot begin leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import SAMPLES, small_config
from rich.console import Console

from pipeline.config import load_config
from pipeline.errors import MissingInputError
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner


@pytest.mark.parametrize(("stages", "missing"), [(["features"], "ingest"), (["ingest", "train"], "features")])
def test_a_run_without_its_input_leaves_no_run_folder(tmp_path: Path, stages: list[str], missing: str) -> None:
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))
    with pytest.raises(MissingInputError, match=f"{stages[-1]} needs the output of {missing}"):
        Runner(run_folder).run(stages)
    assert not run_folder.config.run_dir.exists()
