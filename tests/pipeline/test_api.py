"""Names that a run lacks: stages, splits and networks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from published_by_hand import publish, publish_features

from features.errors import DatasetError
from pipeline.api import Run
from pipeline.errors import MissingInputError, NoOutputYetError
from pipeline.runs.store import StageStore

STAGES = "simulate, ingest, features, gridsearch, train, evaluate, export, report"


def publish_files(run_dir: Path, stage: str, *files: str) -> None:
    """Publish a version of a stage with some files."""
    store = StageStore(run_dir, stage)
    folder = store.next_folder("00" * 8)
    store.create(folder)
    for name in files:
        file = folder / name
        file.parent.mkdir(parents=True)
        file.write_text("made up")
    publish(run_dir, stage, folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    publish_features(folder, rows={"train": [5], "val": [4], "test": [3]})
    publish_files(folder, "train", "hlf/model/model.json", "particle-set/model/model.json")
    trees = "boosted-trees/predictions.parquet"
    publish_files(folder, "evaluate", "hlf/predictions.parquet", trees, "plots/rates.png")
    return Run(folder)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda run: run.output("evaluation"),
            f"there is no stage 'evaluation', only {STAGES}. Did you mean 'evaluate'?",
        ),
        (
            lambda run: run.features("tset"),
            "there is no split 'tset', only train, val, test. Did you mean 'test'?",
        ),
        (
            lambda run: run.dataset().num_rows("validation"),
            "there is no split 'validation', only train, val, test.",
        ),
        (
            lambda run: run.predictions("boosted_trees"),
            "no network 'boosted_trees', only boosted-trees, hlf. Did you mean 'boosted-trees'?",
        ),
        # Folders of the evaluation that are not those of a network.
        (lambda run: run.predictions("plots"), "there is no network 'plots', only boosted-trees"),
        (lambda run: run.predictions(""), "there is no network '', only boosted-trees, hlf."),
        (
            lambda run: run.classifier("hfl"),
            "there is no network 'hfl', only hlf, particle-set. Did you mean 'hlf'?",
        ),
        (lambda run: run.classifier(""), "there is no network '', only hlf, particle-set."),
    ],
)
def test_an_unknown_name_is_refused_with_the_valid_ones(
    run: Run, ask: Callable[[Run], Any], message: str
) -> None:
    with pytest.raises((MissingInputError, DatasetError), match=re.escape(message)) as error:
        ask(run)

    # The command cannot help, nor can its options.
    assert not isinstance(error.value, NoOutputYetError)
    assert "--model" not in str(error.value)


def test_a_stage_without_output_names_the_command_that_makes_it(run: Run) -> None:
    with pytest.raises(NoOutputYetError, match="Run `python -m pipeline export` first"):
        run.output("export")
