"""`compare --study` from features to the page, simulated and with MPI ranks, on a tiny dataset."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke
from minimal_configs import write_config
from published_by_hand import publish_features

from features.dataset import FeatureDataset
from hep_studies.run_result import evaluate_on_test
from hep_studies.study_result import PACKED_FILE, Cell, StudyResult, read_study_result
from pipeline.configuration.yaml_text import write_yaml
from pipeline.terminal.exit_codes import Exit
from training.launching.rank import RunSpec

pytestmark = [pytest.mark.end_to_end, pytest.mark.distributed, pytest.mark.timeout(900)]

SLOW = {"tau": 3, "beta": 0.6, "exact_average": False}
BEST = {"protocol": "each at its best"}
STUDY: dict[str, Any] = {
    "title": "A small study",
    "source": "Somebody 2020",
    "shows": {"small-table-1": "table 1"},
    "minutes": 1,
    "cluster": {"step_seconds": 1.0e-3, "event_seconds": 0.0},
    "train": {"workers": 2, "batch_size": 8, "epochs": 3},
    "methods": {
        "ar-sgd": {"train": {"algorithm": {"name": "ar-sgd"}}},
        "sgd": {"train": {"algorithm": {"name": "sgd"}, "workers": 1}},
        "swarm": {"train": {"algorithm": {"name": "swarm-sgd"}}},
        "slow": {"train": {"algorithm": {"name": "swarm-sgd"}, "slowmo": SLOW}},
    },
    "vary": {"train.learning_rate": [0.003, 0.01]},
    "best_of": ["train.learning_rate"],
    "reference": "ar-sgd",
    "seeds": 2,
    "claims": [
        {
            "says": "It is faster.",
            "better": "swarm",
            "control": "ar-sgd",
            "measure": "seconds",
            **BEST,
        }
    ],
    "tables": [
        {
            "title": "Accuracy",
            "measures": ["test_accuracy", "temporal_efficiency"],
            "given": {"sgd": "90 %"},
        }
    ],
    "figures": [
        {"name": "fig_1", "title": "Accuracy", "panels": [{"y": "val_accuracy", "x": "epoch"}]},
        {"name": "fig_2", "title": "Times", "panels": [{"y": "communicate"}, {"y": "seconds"}]},
    ],
    "forms": {"full": {"execution": "mpi", "vary": {"train.learning_rate": [0.003]}}},
}


class Compared:
    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        rows = {"train": [24] * 4, "val": [30], "test": [60]}
        self.dataset: FeatureDataset = publish_features(
            self.run_dir, rows=rows, separation=0.6, max_particles=5
        )
        self.config = write_config(
            folder, run_dir=str(self.run_dir), model={"hlf": {"hidden": [10]}}
        )
        self.study = folder / "small.yaml"
        self.study.write_text(write_yaml(STUDY))
        self.folder = self.run_dir / "compare" / "small"
        self.first = self.again("--publish", folder / "docs")

    def again(self, *arguments: str | Path) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            # Processes take seconds to start; `test_run_in_simulator` does it.
            patch.setattr(
                "hep_studies.run_in_simulator.ProcessPoolExecutor",
                lambda *_: ThreadPoolExecutor(1),
            )
            # As of a clean commit: only such code publishes.
            patch.setattr("hep_studies.compare.code_version", lambda: "commit 1")
            return invoke("compare", "--study", self.study, "--config", self.config, *arguments)

    def result(self) -> StudyResult:
        return read_study_result(self.folder / "result.json")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    created = Compared(tmp_path_factory.mktemp("compared"))
    assert created.first.exit_code == 0, created.first.stderr
    return created


def test_every_method_is_simulated_at_every_rate_with_every_seed_on_the_same_events(
    compared: Compared,
) -> None:
    runs = compared.result().runs
    first = {
        (run.method, run.values["train.learning_rate"], run.seed): run.curves["train_loss"][0]
        for run in runs
    }
    assert first.keys() == {
        (name, rate, seed) for name in STUDY["methods"] for rate in (0.003, 0.01) for seed in (1, 2)
    }
    # Four methods, two rates, two seeds.
    assert "compare: small: 16 run(s)" in compared.first.stderr
    assert {run.numbers["samples"] for run in runs} == {96 * 3}
    # With the same weights and the same events, the training loss of the first steps is nearly the
    # same.
    assert first["ar-sgd", 0.003, 1] == pytest.approx(first["swarm", 0.003, 1], rel=0.2)
    assert first["ar-sgd", 0.003, 1] != first["ar-sgd", 0.003, 2]


def test_the_simulator_is_checked_on_this_machine(compared: Compared) -> None:
    result = compared.result()
    assert {(check.method, check.workers) for check in result.checks} >= {
        ("ar-sgd", 2),
        ("swarm", 2),
    }
    assert all(check.measured > 0 and check.simulated > 0 for check in result.checks)
    assert len(list(compared.folder.glob("timing/times-*.json"))) == 1


def test_the_page_and_its_figures_are_there_and_published(compared: Compared) -> None:
    page = (compared.folder / "page.md").read_text()
    links = re.findall(r"\]\((figures/[^)]+)\)", page)
    assert len(links) == 2
    assert all((compared.folder / link).exists() for link in links)
    assert (
        "python -m pipeline compare --study small.yaml --form small --config config.yaml`" in page
    )
    assert "|It is faster.||time of the run [s], best|SwarmSGD against AR-SGD: x" in page
    assert "60 test events, which count as N = " in page
    # For the report of the run.
    table, result = json.loads((compared.folder / "table.json").read_text()), compared.result()
    assert (table["title"], table["heads"]) == ("A small study", ["Method", "test accuracy"])
    assert [row[0] for row in table["rows"]] == [result.title(cell) for cell in result.cells()]
    assert all(re.fullmatch(r"\d+\.\d+ % .*", row[1]) for row in table["rows"])
    published = compared.run_dir.parent / "docs" / "small.md"
    assert published.read_text() == page.replace("](figures/", "](small/")
    assert (published.parent / "small" / "fig_1.png").exists()
    assert read_study_result(published.parent / "small" / PACKED_FILE) == compared.result()
    assert f"study: {published}" in compared.first.stderr


def test_the_same_command_draws_again_from_the_json_alone(compared: Compared) -> None:
    retained = compared.folder.with_name("kept")
    shutil.copytree(compared.folder, retained)
    try:
        bytes_before = (compared.folder / "result.json").read_bytes()
        shutil.rmtree(compared.folder / "runs")
        shutil.rmtree(compared.folder / "figures")
        result = compared.again("--set", 'compare.title="Another title"')
        assert result.exit_code == 0, result.stderr
        assert "all runs are done; redrawing" in result.stderr
        assert (compared.folder / "result.json").read_bytes() == bytes_before
        assert (compared.folder / "page.md").read_text().startswith("# Another title\n")
        assert len(list((compared.folder / "figures").glob("*.pdf"))) == 2
        assert not (compared.folder / "runs").exists()
    finally:
        shutil.rmtree(compared.folder)
        retained.rename(compared.folder)


def written(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*/result.json")}


def test_more_seeds_run_only_what_is_new(compared: Compared) -> None:
    written_before, done = written(compared.folder), compared.again("--set", "compare.seeds=3")
    assert done.exit_code == 0, done.stderr
    assert "compare: small: 24 run(s), 16 done before" in done.stderr
    assert written_before.items() <= written(compared.folder).items()
    assert sorted({run.seed for run in compared.result().runs}) == [1, 2, 3]


@pytest.mark.minutes
def test_mpi_ranks_run_the_same_study_and_counts_are_those_of_the_saved_models(
    compared: Compared,
) -> None:
    page = (compared.folder / "page.md").read_bytes()
    completed = compared.again("--form", "full")
    assert completed.exit_code == 0, completed.stderr
    assert "compare: train with 2 worker(s): 6 run(s)" in completed.stderr
    # It replaced that of the simulation.
    assert (compared.folder / "page.md").read_bytes() == page
    compared = copy(compared)
    compared.folder = compared.run_dir / "compare" / "small-full-mpi"
    result = compared.result()
    assert (result.form, result.is_simulated, result.checks) == ("full", False, [])
    run = next(run for run in result.runs if (run.method, run.seed) == ("slow", 2))
    (folder,) = (path.parent for path in compared.folder.glob("runs/slow/seed-2-*/model"))
    assert not list(compared.folder.glob("runs/**/checkpoints"))
    spec = RunSpec.load(folder / "run.json")
    workload = spec.workload.open()
    assert run.counts == evaluate_on_test(workload, workload.load(folder / "model"), spec.train)[0]
    assert run.counts.num_events == 60
    assert result.weights.tolist() == workload.rows("test", spec.train).rows.weights.tolist()
    weighted = result.weights[run.counts.is_correct].sum() / result.weights.sum()
    assert result.numbers(Cell("slow"), "test_accuracy")[2] == pytest.approx(weighted, rel=1e-6)


def test_without_features_the_stage_to_run_is_named(tmp_path: Path) -> None:
    result = invoke(
        "compare",
        "--study",
        "thesis-hlf",
        "--config",
        write_config(tmp_path, run_dir=str(tmp_path / "run")),
    )
    assert result.exit_code == Exit.NOT_THERE_YET
    assert "Run `python -m pipeline features` first" in result.output


def test_a_launcher_of_one_training_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, run_dir=str(tmp_path / "run"))
    algorithm = ("--set", "train.algorithm=mpca", "--set", "train.launcher=spark-agents")
    result = invoke("compare", "--study", "thesis-hlf", "--config", config, *algorithm)
    assert result.exit_code == Exit.USAGE
    assert "train.launcher is spark-agents, which holds executors" in " ".join(
        result.output.split()
    )
