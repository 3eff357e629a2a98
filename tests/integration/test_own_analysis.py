"""The example of plugins, by a wheel, outside the checkout: Spark, two ranks, evaluation, export,
report, predict."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow.parquet as pq
import pytest
from command_line import SAMPLES, version_of
from wheels import ROOT, installed_wheel

pytestmark = [pytest.mark.minutes, pytest.mark.end_to_end, pytest.mark.timeout(900)]


class Analysis:
    def __init__(self, folder: Path) -> None:
        self.folder, self.programs = folder / "mine", installed_wheel(folder)
        self.folder.mkdir()
        for name in ("analysis.yaml", "plugin.py", "study.yaml"):
            shutil.copy(ROOT / "docs" / "examples" / "own-analysis" / name, self.folder)
        self.run_dir, self.plugin = self.folder / "run", self.folder / "plugin.py"

    def do(self, *arguments: str, config: bool = True) -> subprocess.CompletedProcess[str]:
        command = [self.programs / "hep-pipeline", *arguments]
        command += ["--config", "analysis.yaml"] if config else []
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)

    def output(self, stage: str) -> Path:
        return version_of(self.run_dir, stage)


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    created = Analysis(tmp_path_factory.mktemp("own"))
    result = created.do("run")
    assert result.returncode == 0, result.stderr
    return created


def test_own_features_are_columns_in_every_product(analysis: Analysis) -> None:
    features = pq.ParquetDataset(list(analysis.output("features").glob("t*/*.parquet"))).read()
    significance = features["met"].to_numpy() / np.sqrt(features["ht"].to_numpy() + 1)
    assert features["met_significance"].to_numpy() == pytest.approx(significance, rel=1e-5)
    centrality = features["track_centrality"].to_numpy()
    assert ((centrality > 0) & (centrality < 1)).all()
    assert features["num_vertices"].to_numpy() == pytest.approx(features["Vertex_size"].to_numpy())
    histograms = json.loads(
        (analysis.output("features") / "histograms.json").read_text(encoding="utf-8")
    )
    assert {"hlf.met_significance", "hlf.track_centrality", "hlf.num_vertices"} <= histograms.keys()
    session = onnxruntime.InferenceSession(analysis.output("export") / "residual" / "model.onnx")
    inputs = json.loads(session.get_modelmeta().custom_metadata_map["inputs"])
    assert inputs["hlf"]["names"][-3:] == ["met_significance", "track_centrality", "num_vertices"]


def test_the_own_method_trains_the_own_network_on_two_ranks(analysis: Analysis) -> None:
    trained = analysis.output("train") / "residual"
    settings = json.loads((trained / "run.json").read_text(encoding="utf-8"))
    assert settings["train"]["algorithm"] == {
        "name": "lazy-gossip",
        "patience": 2,
        "topology": "star",
        "network": None,
    }
    assert settings["model"] == {"name": "residual", "width": 24, "depth": 2}
    ranks = json.loads((trained / "summary.json").read_text(encoding="utf-8"))["per_rank"]
    begun, steps = (sum(rank[name] for rank in ranks) for name in ("averages_begun", "steps"))
    assert 0.4 * steps < begun < 0.6 * steps


def test_the_report_shows_the_own_figure(analysis: Analysis) -> None:
    assert (
        analysis.output("evaluate") / "residual" / "plots" / "own_certainty.png"
    ).stat().st_size > 5_000
    assert (
        "Events by the probability of their true class."
        in (analysis.output("report") / "report.html").read_text()
    )


def test_predict_needs_the_plugin_and_then_gives_the_scores_of_the_evaluation(
    analysis: Analysis, tmp_path: Path
) -> None:
    model = str(analysis.output("export") / "residual" / "model.onnx")
    message = (
        "predict",
        str(SAMPLES / "ttbar_13TeV_PU20_0.root"),
        "--model",
        model,
        "--parquet",
        "--out",
    )
    without = analysis.do(*message, str(tmp_path / "no"), config=False)
    assert without.returncode == 1
    assert "'residual'" in without.stderr
    assert "Its training had plugin.py: name it in `plugins`" in " ".join(without.stderr.split())
    load = "import sys; from pipeline.api import load_classifier; load_classifier(sys.argv[1], plugins=sys.argv[2:])"
    for plugins, code in ([], 1), (["plugin.py"], 0):
        command = [
            analysis.programs / "python",
            "-c",
            load,
            analysis.output("train") / "residual",
            *plugins,
        ]
        result = subprocess.run(
            command, cwd=analysis.folder, capture_output=True, text=True, check=False
        )
        assert result.returncode == code, result.stderr
        assert ("plugins=[...]" in result.stderr) == (code == 1)
    result = analysis.do(*message, str(tmp_path / "out"))
    assert result.returncode == 0, result.stderr
    scores = pq.read_table(next((tmp_path / "out").iterdir())).to_pandas()
    expected = pq.read_table(
        analysis.output("evaluate") / "residual" / "predictions.parquet"
    ).to_pandas()
    pair = expected[expected["sample"] == "ttbar"].merge(scores, on="entry", suffixes=("", "_now"))
    same = np.isclose(pair.probability_ttbar, pair.probability_ttbar_now, atol=1e-5)
    # Entries of both files of the sample have these numbers.
    assert same.sum() >= 0.3 * len(pair) > 5


def test_a_plugin_counts_by_what_it_means(analysis: Analysis) -> None:
    text = analysis.plugin.read_text(encoding="utf-8")
    analysis.plugin.write_text(f"{text}\n# Words.\n", encoding="utf-8")
    assert "stale" not in analysis.do("plan").stdout
    analysis.plugin.write_text(text.replace("+ 1)", "+ 2)"), encoding="utf-8")
    stale = [
        line.split()[0] for line in analysis.do("plan").stdout.splitlines() if " stale " in line
    ]
    assert stale[:2] == ["features", "train"]
    analysis.plugin.write_text(
        text.replace("return range(world_size) if", "return range(1 // 0) if"), encoding="utf-8"
    )
    failed = analysis.do("train", "--force")
    assert failed.returncode == 1
    assert "plugin.py, line" in failed.stderr
    assert "ZeroDivisionError" in failed.stderr
    analysis.plugin.write_text(text, encoding="utf-8")


def test_the_own_method_trains_the_own_network_in_the_simulator(analysis: Analysis) -> None:
    # The report is stale after it.
    completed = analysis.do("compare", "--study", "study.yaml")
    assert completed.returncode == 0, completed.stderr
    result = json.loads(
        (analysis.run_dir / "compare" / "study" / "result.json").read_text(encoding="utf-8")
    )
    averages = {run["method"]: run["numbers"]["averages_begun"] for run in result["runs"]}
    assert averages["lazy"] == pytest.approx(averages["ad-psgd"] / 2, rel=0.1)
    assert len(result["runs"]) == 4
