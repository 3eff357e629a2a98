"""`pipeline.api`: a finished run from Python, and scores where only the wheel's own requirements
are installed."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import uproot
from command_line import SAMPLES, version_of
from finished_run import FinishedRun
from packaging.requirements import Requirement
from prediction_trees import keys_of, probabilities, uuid_of

import pipeline.api
from features.columns import COLUMNS
from models.prediction_files import probability_branches
from pipeline.api import PredictionWarning, Run, current_model, load_run, predict
from pipeline.errors import MissingInputError, NoOutputYetError

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
#: Import names of the packages of extras that have another; pyarrow looks for pandas itself.
MODULES = {"scikit-learn": "sklearn", "boost-histogram": "boost_histogram"}
#: Runs the command line where the modules of the first argument cannot be imported.
RUN_WITHOUT_MODULES = """
import runpy, sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))
runpy.run_module("pipeline", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def run(finished_run: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("api")
    finished_run.copy(folder)
    return load_run(folder / "run")


def test_a_run_gives_its_outputs(run: Run) -> None:
    events = pq.read_table(version_of(run.folder, "ingest") / "events")
    predictions = run.predictions("hlf")

    assert run.classes == ["QCD", "ttbar", "W+jets"]
    assert run.events().entry.to_list() == events["entry"].to_pylist()
    assert set(probability_branches(run.classes)) < set(predictions.schema.names)
    assert run.features().num_rows == len(predictions) == run.metrics()["num_events"]
    assert list(run.histograms()["hlf.mt"].axes[1]) == [0, 1, 2]


def test_a_missing_output_or_model_names_the_command_that_makes_it(run: Run) -> None:
    with pytest.raises(NoOutputYetError, match="simulate"):
        run.output("simulate")
    with pytest.raises(MissingInputError, match="promote"):
        current_model(run)


def test_the_lines_of_the_docs_score_a_run_as_its_evaluation_did(run: Run) -> None:
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert 'load_run("demo")' in code
    variables: dict[str, Any] = {}

    exec(code.replace('"demo"', repr(str(run.folder))), variables)  # noqa: S102 - the lines of our own page

    features = variables["features"]
    scores = variables["scores"]
    assert set(COLUMNS) <= set(features.schema.names)
    assert features.num_rows == np.isfinite(scores).all(axis=1).sum()
    keys = variables["events"][["file_uuid", "entry"]].to_list()
    scores_of_event = {}
    for key, event_scores in zip(keys, scores, strict=True):
        scores_of_event[key["file_uuid"], key["entry"]] = event_scores
    predictions = variables["predictions"]
    expected = [scores_of_event[event] for event in keys_of(predictions)]
    assert probabilities(predictions) == pytest.approx(np.array(expected), abs=1e-6)


def predictions_of_file(run: Run, file: Path) -> Any:
    """The predictions of the evaluation for the events of a file."""
    predictions = run.predictions("hlf").to_pandas()
    return predictions[predictions.file_uuid == uuid_of(file)]


def test_files_are_scored_as_the_evaluation_did(run: Run) -> None:
    file = SAMPLES / "ttbar_13TeV_PU20_0.root"

    with pytest.warns(PredictionWarning, match="hlf was trained on .* events of these files"):
        scored = predict(file, run.classifier("hlf")).to_pandas()

    with uproot.open({file: "Delphes"}) as tree:
        assert len(scored) == tree.num_entries
    expected = predictions_of_file(run, file)
    scores = scored.probability_ttbar[expected.entry].to_numpy()
    assert scores == pytest.approx(expected.probability_ttbar, abs=1e-5)
    assert (scored.predicted < 0).equals(scored.flag != 0)
    assert set(scored.file) == {str(file)}


def test_every_public_name_has_a_docstring() -> None:
    public = [getattr(pipeline.api, name) for name in pipeline.api.__all__]
    public += [getattr(Run, name) for name in dir(Run) if not name.startswith("_")]

    for documented in public:
        assert inspect.getdoc(documented), documented


def modules_of_extras() -> set[str]:
    """Import names of what the extras for reports, Spark and training install in addition."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*extras["report"], *extras["spark"], *extras["train"]]
    packages = {Requirement(line).name for line in lines}
    packages -= {Requirement(line).name for line in project["dependencies"]}
    packages -= {"pandas"}
    return {MODULES.get(package, package) for package in packages} | {"py4j"}


def run_without_extras(*arguments: object) -> subprocess.CompletedProcess[str]:
    modules = ",".join(modules_of_extras())
    command = [sys.executable, "-c", RUN_WITHOUT_MODULES, modules, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_without_the_extras_exported_networks_score_files(run: Run, tmp_path: Path) -> None:
    files = list(SAMPLES.glob("*_0.root"))
    model = version_of(run.folder, "export") / "hlf" / "model.onnx"
    out = tmp_path / "scores"
    assert modules_of_extras() >= {"torch", "pyspark", "petastorm", "mpi4py", "matplotlib"}

    completed = run_without_extras("predict", *files, "--model", model, "--out", out)

    assert completed.returncode == 0, completed.stderr
    for file in files:
        expected = predictions_of_file(run, file)
        with uproot.open({out / f"{file.stem}.scores.root": "predictions"}) as tree:
            scores = tree["probability_ttbar"].array(library="np")
        assert scores[expected.entry] == pytest.approx(expected.probability_ttbar, abs=1e-5)


def test_without_the_extras_a_trained_network_names_the_extra_that_it_needs(
    run: Run, tmp_path: Path
) -> None:
    model = version_of(run.folder, "train") / "hlf"
    arguments = ("predict", SAMPLES / "*_0.root", "--model", model, "--out", tmp_path / "no")

    completed = run_without_extras(*arguments)

    assert completed.returncode == 1
    assert "torch" in completed.stderr
    assert "pip install 'hep-pipeline[train]'" in completed.stderr
