"""`compare --study` from features to the page, simulated and with MPI ranks, on a tiny dataset."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke
from minimal_configs import write_config
from published_by_hand import publish_features

from hep_studies.run_result import evaluate_on_test
from hep_studies.study_result import PACKED_FILE, Cell, StudyResult, read_study_result
from pipeline.configuration.yaml_text import write_yaml
from pipeline.terminal.exit_codes import Exit
from training.launching.run_spec import RunSpec

pytestmark = [pytest.mark.end_to_end, pytest.mark.distributed, pytest.mark.timeout(900)]

NUM_TRAIN_EVENTS, NUM_TEST_EVENTS = 96, 60
SLOWMO = {"tau": 3, "beta": 0.6, "exact_average": False}
RATES = [0.003, 0.01]
METHODS: dict[str, Any] = {
    "ar-sgd": {"train": {"algorithm": {"name": "ar-sgd"}}},
    "sgd": {"train": {"algorithm": {"name": "sgd"}, "workers": 1}},
    "swarm": {"train": {"algorithm": {"name": "swarm-sgd"}}},
    "slow": {"train": {"algorithm": {"name": "swarm-sgd"}, "slowmo": SLOWMO}},
}
CLAIM = {
    "says": "It is faster.",
    "better": "swarm",
    "control": "ar-sgd",
    "measure": "seconds",
    "protocol": "each at its best",
}
STUDY: dict[str, Any] = {
    "title": "A small study",
    "source": "Somebody 2020",
    "shows": {"small-table-1": "table 1"},
    "minutes": 1,
    "cluster": {"step_seconds": 1.0e-3, "event_seconds": 0.0},
    "train": {"workers": 2, "batch_size": 8, "epochs": 3},
    "methods": METHODS,
    "vary": {"train.learning_rate": RATES},
    "best_of": ["train.learning_rate"],
    "reference": "ar-sgd",
    "seeds": 2,
    "claims": [CLAIM],
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


class SmallStudy:
    """The study on published features, and a config."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        rows = {"train": [24] * 4, "val": [30], "test": [NUM_TEST_EVENTS]}
        publish_features(self.run_dir, rows=rows, separation=0.6, max_particles=5)
        model = {"hlf": {"hidden": [10]}}
        self.config = write_config(folder, run_dir=str(self.run_dir), model=model)
        self.study = folder / "small.yaml"
        self.study.write_text(write_yaml(STUDY))
        self.docs = folder / "docs"
        self.folder = self.run_dir / "compare" / "small"

    def compare(self, *arguments: str | Path) -> str:
        """Run the study; returns the printed lines."""
        with pytest.MonkeyPatch.context() as patch:
            # Processes take seconds to start; `test_run_in_simulator` starts them.
            patch.setattr(
                "hep_studies.run_in_simulator.ProcessPoolExecutor",
                lambda *_: ThreadPoolExecutor(1),
            )
            # As of a clean commit: only such code publishes.
            patch.setattr("hep_studies.compare.code_version", lambda: "commit 1")
            options = ("--study", self.study, "--config", self.config)
            result = invoke("compare", *options, *arguments)
        assert result.exit_code == 0, result.stderr
        return str(result.stderr)

    def result(self) -> StudyResult:
        return read_study_result(self.folder / "result.json")

    def change_times(self) -> dict[Path, int]:
        """The results of the runs with their times of change."""
        results = self.folder.glob("runs/*/*/result.json")
        return {path: path.stat().st_mtime_ns for path in results}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> SmallStudy:
    return SmallStudy(tmp_path_factory.mktemp("compared"))


@pytest.fixture(scope="module")
def output(study: SmallStudy) -> str:
    """The printed lines of the first comparison, which is published."""
    return study.compare("--publish", study.docs)


def test_every_method_is_simulated_at_every_rate_with_every_seed_on_the_same_events(
    study: SmallStudy, output: str
) -> None:
    first_losses = {}
    for run in study.result().runs:
        key = (run.method, run.values["train.learning_rate"], run.seed)
        first_losses[key] = run.curves["train_loss"][0]
        assert run.numbers["samples"] == NUM_TRAIN_EVENTS * 3

    assert first_losses.keys() == {
        (method, rate, seed) for method in METHODS for rate in RATES for seed in (1, 2)
    }
    assert "compare: small: 16 run(s)" in output
    # With equal weights and events, the training losses of the first steps are nearly equal.
    loss = first_losses["ar-sgd", 0.003, 1]
    assert loss == pytest.approx(first_losses["swarm", 0.003, 1], rel=0.2)
    assert loss != first_losses["ar-sgd", 0.003, 2]


@pytest.mark.usefixtures("output")
def test_the_simulator_is_checked_on_this_machine(study: SmallStudy) -> None:
    checks = study.result().checks

    assert {(check.method, check.workers) for check in checks} >= {("ar-sgd", 2), ("swarm", 2)}
    for check in checks:
        assert check.measured > 0
        assert check.simulated > 0
    assert len(list(study.folder.glob("timing/times-*.json"))) == 1


@pytest.mark.usefixtures("output")
def test_the_page_shows_figures_claims_and_its_command(study: SmallStudy) -> None:
    page = (study.folder / "page.md").read_text()

    figures = re.findall(r"\]\((figures/[^)]+)\)", page)
    assert [(study.folder / figure).exists() for figure in figures] == [True, True]
    command = "python -m pipeline compare --study small.yaml --form small --config config.yaml`"
    assert command in page
    assert "|It is faster.|time of the run [s], best|" in page
    assert "|It is faster.|SwarmSGD against AR-SGD: x" in page
    assert f"{NUM_TEST_EVENTS} test events, which count as N = " in page


@pytest.mark.usefixtures("output")
def test_the_table_for_the_report_has_a_row_for_each_method_and_rate(study: SmallStudy) -> None:
    table = json.loads((study.folder / "table.json").read_text())
    result = study.result()

    assert table["title"] == "A small study"
    assert table["heads"] == ["Method", "test accuracy"]
    assert [row[0] for row in table["rows"]] == [result.title(cell) for cell in result.cells()]
    for _, accuracy in table["rows"]:
        assert re.fullmatch(r"\d+\.\d+ % .*", accuracy)


def test_the_published_page_is_that_of_the_run_with_its_figures_and_results(
    study: SmallStudy, output: str
) -> None:
    page = (study.folder / "page.md").read_text()
    published = study.docs / "small.md"

    assert published.read_text() == page.replace("](figures/", "](small/")
    assert (study.docs / "small" / "fig_1.png").exists()
    assert read_study_result(study.docs / "small" / PACKED_FILE) == study.result()
    assert f"study: {published}" in output


@pytest.mark.usefixtures("output")
def test_a_finished_study_is_redrawn_from_its_json_alone(study: SmallStudy) -> None:
    copy = shutil.copytree(study.folder, study.folder.with_name("copy"))
    try:
        result_bytes = (study.folder / "result.json").read_bytes()
        shutil.rmtree(study.folder / "runs")
        shutil.rmtree(study.folder / "figures")

        redrawn = study.compare("--set", 'compare.title="Another title"')

        assert "all runs are done; redrawing" in redrawn
        assert (study.folder / "result.json").read_bytes() == result_bytes
        assert (study.folder / "page.md").read_text().startswith("# Another title\n")
        assert len(list((study.folder / "figures").glob("*.pdf"))) == 2
        assert not (study.folder / "runs").exists()
    finally:
        shutil.rmtree(study.folder)
        copy.rename(study.folder)


@pytest.mark.usefixtures("output")
def test_more_seeds_run_only_the_new_runs(study: SmallStudy) -> None:
    times_before = study.change_times()

    extended = study.compare("--set", "compare.seeds=3")

    assert "compare: small: 24 run(s), 16 done before" in extended
    assert times_before.items() <= study.change_times().items()
    assert {run.seed for run in study.result().runs} == {1, 2, 3}


@pytest.mark.minutes
@pytest.mark.usefixtures("output")
def test_mpi_ranks_run_the_same_study_and_counts_are_those_of_the_saved_models(
    study: SmallStudy,
) -> None:
    page_of_simulation = (study.folder / "page.md").read_bytes()
    mpi_folder = study.run_dir / "compare" / "small-full-mpi"

    full_output = study.compare("--form", "full")

    assert "compare: train with 2 worker(s): 6 run(s)" in full_output
    assert (study.folder / "page.md").read_bytes() == page_of_simulation
    result = read_study_result(mpi_folder / "result.json")
    assert result.form == "full"
    assert not result.is_simulated
    assert result.checks == []
    assert not list(mpi_folder.glob("runs/**/checkpoints"))

    run = next(run for run in result.runs if run.method == "slow" and run.seed == 2)
    (model,) = mpi_folder.glob("runs/slow/seed-2-*/model")
    spec = RunSpec.load(model.parent / "run.json")
    workload = spec.workload.open()
    counts, _ = evaluate_on_test(workload, workload.load(model), spec.train)
    weights = workload.rows("test", spec.train).rows.weights
    assert run.counts == counts
    assert counts.num_events == NUM_TEST_EVENTS
    assert result.weights.tolist() == weights.tolist()
    accuracy = result.weights[counts.is_correct].sum() / result.weights.sum()
    assert result.numbers(Cell("slow"), "test_accuracy")[2] == pytest.approx(accuracy, rel=1e-6)


def test_without_features_the_stage_to_run_is_named(tmp_path: Path) -> None:
    config = write_config(tmp_path, run_dir=str(tmp_path / "run"))

    result = invoke("compare", "--study", "thesis-hlf", "--config", config)

    assert result.exit_code == Exit.NOT_THERE_YET
    assert "Run `python -m pipeline features` first" in result.output


def test_a_launcher_of_one_training_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, run_dir=str(tmp_path / "run"))
    agents = ("--set", "train.algorithm=mpca", "--set", "train.launcher=spark-agents")

    result = invoke("compare", "--study", "thesis-hlf", "--config", config, *agents)

    message = "train.launcher is spark-agents, which holds executors"
    assert result.exit_code == Exit.USAGE
    assert message in " ".join(result.output.split())
