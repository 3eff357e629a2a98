"""The example of plugins, by a wheel, outside the checkout: Spark, two ranks, evaluation, export,
report, predict."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow.parquet as pq
import pytest
from command_line import SAMPLES, version_of
from wheels import ROOT, installed_wheel

pytestmark = [pytest.mark.minutes, pytest.mark.end_to_end, pytest.mark.timeout(900)]

EXAMPLE = ROOT / "docs" / "examples" / "own-analysis"
OWN_FEATURES = ["met_significance", "track_centrality", "num_vertices"]
#: Loads the model of the first argument with the plugins of the others.
LOAD = """
import sys
from pipeline.api import load_classifier
load_classifier(sys.argv[1], plugins=sys.argv[2:])
"""


class Analysis:
    """The example in a folder of its own, with the wheel installed."""

    def __init__(self, folder: Path) -> None:
        self.programs = installed_wheel(folder)
        self.folder = folder / "mine"
        self.folder.mkdir()
        for name in ("analysis.yaml", "plugin.py", "study.yaml"):
            shutil.copy(EXAMPLE / name, self.folder)
        self.run_dir = self.folder / "run"
        self.plugin = self.folder / "plugin.py"

    def execute(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment of the wheel in the folder of the example."""
        command = [str(self.programs / program), *arguments]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)

    def pipeline(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the config of the example."""
        return self.execute("hep-pipeline", *arguments, "--config", "analysis.yaml")

    def output(self, stage: str) -> Path:
        return version_of(self.run_dir, stage)

    def read_json(self, stage: str, name: str) -> Any:
        return json.loads((self.output(stage) / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """The example after `run`."""
    example = Analysis(tmp_path_factory.mktemp("own"))
    completed = example.pipeline("run")
    assert completed.returncode == 0, completed.stderr
    return example


def test_own_features_are_columns_in_every_product(analysis: Analysis) -> None:
    files = list(analysis.output("features").glob("t*/*.parquet"))
    features = pq.ParquetDataset(files).read().to_pandas()
    histograms = analysis.read_json("features", "histograms.json")
    session = onnxruntime.InferenceSession(analysis.output("export") / "residual" / "model.onnx")
    inputs = json.loads(session.get_modelmeta().custom_metadata_map["inputs"])

    significance = features.met / np.sqrt(features.ht + 1)
    assert features.met_significance.to_numpy() == pytest.approx(significance, rel=1e-5)
    assert features.track_centrality.between(0, 1, inclusive="neither").all()
    assert features.num_vertices.to_numpy() == pytest.approx(features.Vertex_size)
    assert {f"hlf.{name}" for name in OWN_FEATURES} <= histograms.keys()
    assert inputs["hlf"]["names"][-3:] == OWN_FEATURES


def test_the_own_method_trains_the_own_network_on_two_ranks(analysis: Analysis) -> None:
    run = analysis.read_json("train", "residual/run.json")
    ranks = analysis.read_json("train", "residual/summary.json")["per_rank"]

    assert run["train"]["algorithm"] == {
        "name": "lazy-gossip",
        "patience": 2,
        "topology": "star",
        "network": None,
    }
    assert run["model"] == {"name": "residual", "width": 24, "depth": 2}
    num_averages = sum(rank["averages_begun"] for rank in ranks)
    num_steps = sum(rank["steps"] for rank in ranks)
    assert 0.4 * num_steps < num_averages < 0.6 * num_steps


def test_the_report_shows_the_own_figure(analysis: Analysis) -> None:
    figure = analysis.output("evaluate") / "residual" / "plots" / "own_certainty.png"
    report = (analysis.output("report") / "report.html").read_text()

    assert figure.stat().st_size > 5_000
    assert "Events by the probability of their true class." in report


def test_a_model_loads_in_python_only_with_its_plugin(analysis: Analysis) -> None:
    model = str(analysis.output("train") / "residual")

    without_plugin = analysis.execute("python", "-c", LOAD, model)
    with_plugin = analysis.execute("python", "-c", LOAD, model, "plugin.py")

    assert without_plugin.returncode == 1
    assert "plugins=[...]" in without_plugin.stderr
    assert with_plugin.returncode == 0, with_plugin.stderr


def test_predict_needs_the_plugin_and_then_gives_the_scores_of_the_evaluation(
    analysis: Analysis, tmp_path: Path
) -> None:
    file = str(SAMPLES / "ttbar_13TeV_PU20_0.root")
    model = str(analysis.output("export") / "residual" / "model.onnx")
    arguments = ("predict", file, "--model", model, "--parquet", "--out")

    without_config = analysis.execute("hep-pipeline", *arguments, str(tmp_path / "no"))
    with_config = analysis.pipeline(*arguments, str(tmp_path / "out"))

    assert without_config.returncode == 1
    assert "'residual'" in without_config.stderr
    advice = "Its training had plugin.py: name it in `plugins`"
    assert advice in " ".join(without_config.stderr.split())
    assert with_config.returncode == 0, with_config.stderr
    scores = pq.read_table(next((tmp_path / "out").iterdir())).to_pandas()
    evaluated = pq.read_table(
        analysis.output("evaluate") / "residual" / "predictions.parquet"
    ).to_pandas()
    of_sample = evaluated[evaluated["sample"] == "ttbar"]
    # Entries of both files of the sample have these numbers.
    pairs = of_sample.merge(scores, on="entry", suffixes=("", "_now"))
    agrees = np.isclose(pairs.probability_ttbar, pairs.probability_ttbar_now, atol=1e-5)
    assert agrees.sum() >= 0.3 * len(pairs) > 5


def test_a_stage_is_stale_when_the_meaning_of_the_plugin_changes(analysis: Analysis) -> None:
    text = analysis.plugin.read_text(encoding="utf-8")
    try:
        analysis.plugin.write_text(f"{text}\n# A comment.\n", encoding="utf-8")
        plan_with_comment = analysis.pipeline("plan").stdout
        analysis.plugin.write_text(text.replace("+ 1)", "+ 2)"), encoding="utf-8")
        plan_with_change = analysis.pipeline("plan").stdout
    finally:
        analysis.plugin.write_text(text, encoding="utf-8")

    assert "stale" not in plan_with_comment
    stale_lines = [line for line in plan_with_change.splitlines() if " stale " in line]
    assert [line.split()[0] for line in stale_lines][:2] == ["features", "train"]


def test_a_model_is_refused_when_the_meaning_of_its_plugin_changed(
    analysis: Analysis, tmp_path: Path
) -> None:
    file = str(SAMPLES / "ttbar_13TeV_PU20_0.root")
    exported = str(analysis.output("export") / "residual" / "model.onnx")
    commands = {
        "met_significance": ("predict", file, "--model", exported, "--out", str(tmp_path / "out")),
        "num_vertices": ("evaluate-files", "--inputs", f"ttbar={file}"),
        "network residual": ("export", "--force"),
    }
    parts = [*(f"feature {name}" for name in OWN_FEATURES), "network residual"]
    model = analysis.read_json("train", "residual/model/model.json")
    text = analysis.plugin.read_text(encoding="utf-8")
    try:
        analysis.plugin.write_text(text.replace("+ 1)", "+ 2)"), encoding="utf-8")
        refused = {part: analysis.pipeline(*command) for part, command in commands.items()}
    finally:
        analysis.plugin.write_text(text, encoding="utf-8")

    assert list(model["plugin_code"]) == parts
    assert len(set(model["plugin_code"].values())) == 1
    for part, completed in refused.items():
        message = " ".join(completed.stderr.split())
        assert completed.returncode == 1, message
        assert "used other code of the plugin" in message
        assert part in message


def test_an_error_in_the_plugin_names_its_line(analysis: Analysis) -> None:
    text = analysis.plugin.read_text(encoding="utf-8")
    partners = "return range(world_size) if"
    broken = text.replace(partners, partners.replace("world_size", "1 // 0"))
    try:
        analysis.plugin.write_text(broken, encoding="utf-8")
        completed = analysis.pipeline("train", "--force")
    finally:
        analysis.plugin.write_text(text, encoding="utf-8")

    assert completed.returncode == 1
    assert "plugin.py, line" in completed.stderr
    assert "ZeroDivisionError" in completed.stderr


def test_the_own_method_trains_the_own_network_in_the_simulator(analysis: Analysis) -> None:
    # The report is stale after it.
    completed = analysis.pipeline("compare", "--study", "study.yaml")

    assert completed.returncode == 0, completed.stderr
    result_path = analysis.run_dir / "compare" / "study" / "result.json"
    runs = json.loads(result_path.read_text(encoding="utf-8"))["runs"]
    assert len(runs) == 4
    averages = {run["method"]: run["numbers"]["averages_begun"] for run in runs}
    assert averages["lazy"] == pytest.approx(averages["ad-psgd"] / 2, rel=0.1)
