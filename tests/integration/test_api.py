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

import pipeline.api
from features.columns import COLUMNS
from models.prediction_files import probability_branches
from pipeline.api import Run, current_model, load_run, predict
from pipeline.errors import MissingInputError, NoOutputYetError

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
#: Import names of what the extras install; pyarrow looks for pandas itself.
MODULES = {"scikit-learn": "sklearn", "boost-histogram": "boost_histogram", "pandas": ""}
#: Runs the command line where these modules cannot be imported.
WITHOUT = """
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
    events = pq.ParquetDataset(version_of(run.folder, "ingest") / "events").read()
    assert run.classes == ["QCD", "ttbar", "W+jets"]
    assert run.events().entry.to_list() == events["entry"].to_pylist()
    predicted = run.predictions("hlf")
    assert {*probability_branches(run.classes)} < {*predicted.schema.names}
    assert run.features().num_rows == len(predicted) == run.metrics()["num_events"]
    assert list(run.histograms()["hlf.mt"].axes[1]) == [0, 1, 2]
    with pytest.raises(NoOutputYetError, match="simulate"):
        run.output("simulate")
    with pytest.raises(MissingInputError, match="promote"):
        current_model(run)


def test_the_lines_of_the_docs_score_a_run_as_its_evaluation_did(run: Run) -> None:
    (lines,) = re.findall(
        r"```python\n(.*?)```",
        (ROOT / "docs" / "library.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert 'load_run("demo")' in lines
    actual: dict[str, Any] = {}
    exec(lines.replace('"demo"', repr(str(run.folder))), actual)  # noqa: S102 - the lines of our own page
    assert {*COLUMNS} <= {*actual["features"].schema.names}
    assert actual["features"].num_rows == np.isfinite(actual["scores"]).all(axis=1).sum()
    score = {
        (event["file_uuid"], event["entry"]): row
        for event, row in zip(
            actual["events"][["file_uuid", "entry"]].to_list(), actual["scores"], strict=True
        )
    }
    names = probability_branches(run.classes)
    for event in actual["predictions"].to_pylist():
        assert score[event["file_uuid"], event["entry"]] == pytest.approx(
            [event[name] for name in names], abs=1e-6
        )


def test_files_are_scored_as_the_evaluation_did(run: Run) -> None:
    file = SAMPLES / "ttbar_13TeV_PU20_0.root"
    scored = predict(file, run.classifier("hlf")).to_pandas()
    with uproot.open(file) as root:
        assert len(scored) == root["Delphes"].num_entries
        uuid = str(root.file.uuid)
    predicted = run.predictions("hlf").to_pandas()
    expected = predicted[predicted.file_uuid == uuid]
    assert scored.probability_ttbar[expected.entry].to_numpy() == pytest.approx(
        expected.probability_ttbar, abs=1e-5
    )
    assert (scored.predicted < 0).equals(scored.flag != 0)
    assert list(scored.file.unique()) == [str(file)]


def test_everything_public_is_described() -> None:
    for name in pipeline.api.__all__:
        assert getattr(pipeline.api, name).__doc__
    assert all(inspect.getdoc(getattr(Run, name)) for name in dir(Run) if not name.startswith("_"))


def test_without_the_extras_features_and_exported_networks_work(run: Run, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {Requirement(line).name for line in project["dependencies"]}
    extra = {
        Requirement(line).name
        for name in ("report", "spark", "train")
        for line in project["optional-dependencies"][name]
    }
    blocked = ",".join(filter(None, (MODULES.get(name, name) for name in extra - needed)))
    assert {"torch", "pyspark", "petastorm", "mpi4py", "matplotlib"} <= {*blocked.split(",")}

    def without(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT, f"{blocked},py4j", *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    model = version_of(run.folder, "export") / "hlf" / "model.onnx"
    result = without(
        "predict", *SAMPLES.glob("*_0.root"), "--model", model, "--out", tmp_path / "scores"
    )
    assert result.returncode == 0, result.stderr
    predicted = run.predictions("hlf").to_pandas()
    for file in SAMPLES.glob("*_0.root"):
        with (
            uproot.open(file) as root,
            uproot.open(tmp_path / "scores" / f"{file.stem}.scores.root") as scores,
        ):
            expected = predicted[predicted.file_uuid == str(root.file.uuid)]
            actual = scores["predictions"]["probability_ttbar"].array(library="np")
        assert actual[expected.entry] == pytest.approx(expected.probability_ttbar, abs=1e-5)
    trained = without(
        "predict",
        SAMPLES / "*_0.root",
        "--model",
        version_of(run.folder, "train") / "hlf",
        "--out",
        tmp_path / "no",
    )
    assert trained.returncode == 1
    assert "torch" in trained.stderr
    assert "pip install 'hep-pipeline[train]'" in trained.stderr
