"""`compare thesis` from features to the page, on a tiny dataset."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import pipeline
from features_stage import config_of, made_features
from typer.testing import CliRunner

from features.dataset import FeatureDataset
from pipeline.cli import app
from pipeline.commands.compare import _made
from pipeline.run_folder import RunFolder
from pipeline.terminal.exit_codes import Exit
from training.launching.rank import RunSpec
from training.studies.plan import PlannedRun
from training.studies.results import Comparison
from training.studies.runs import count
from training.studies.variants import ALL_VARIANTS, BEST, PLAIN, REFERENCE, Variant

pytestmark = [pytest.mark.end_to_end, pytest.mark.distributed, pytest.mark.timeout(900)]

SMALL = {
    "models": ["hlf", "particles"],
    "workers": 2,
    "batch_size": 8,
    "tau": 3,
    "seeds": {"hlf": 2, "particles": 1},
    "epochs": {"hlf": 3, "particles": 2},
    "timing_epochs": {"hlf": 2, "particles": 1},
    "simulated_workers": 4,
    "rate_factors": [1.0],
}


class Compared:
    """A comparison of all variants with two seeds."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.dataset: FeatureDataset = made_features(
            self.run_dir, rows={"train": [24] * 4, "val": [30], "test": [60]}, separation=0.6, most_particles=5
        )
        self.config = config_of(
            folder, self.run_dir, compare=SMALL, model={"hlf": {"hidden": [10]}, "particles": {"gru_width": 4}}
        )
        self.folder = self.run_dir / "compare" / "thesis"
        self.first = self.again()

    def again(self, *arguments: str) -> Any:
        """Compare."""
        return pipeline("compare", "thesis", "--config", self.config, *arguments)

    def result(self) -> Comparison:
        """What stands in `comparison.json`."""
        return Comparison.from_json(json.loads((self.folder / "comparison.json").read_text()))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    made = Compared(tmp_path_factory.mktemp("compared"))
    assert made.first.returncode == 0, made.first.stderr
    return made


def test_every_variant_is_trained_with_every_seed(compared: Compared) -> None:
    found = {(run.model, run.variant, run.seed) for run in compared.result().runs}
    keys = [variant.key for variant in ALL_VARIANTS]
    assert found == {("hlf", key, seed) for key in keys for seed in (1, 2)} | {("particles", key, 1) for key in keys}
    # Checkpoints have served.
    assert not list(compared.folder.glob("runs/**/checkpoints"))


def test_all_runs_see_the_same_events_and_begin_with_the_same_weights(compared: Compared) -> None:
    result = compared.result()
    for model in ("hlf", "particles"):
        runs = [run for run in result.runs if run.model == model]
        assert len({run.summary["samples"] + run.summary["samples_left_out"] for run in runs}) == 1
    # With the same weights and the same events, the training loss of the first steps is the same but for rounding.
    first = {
        key: [run.curves["train_loss"][0] for run in result.of("hlf", Variant.of(key))]
        for key in ("ad-psgd-slowmo", "ad-psgd-slowmo-no-avg", "swarm-sgd")
    }
    for losses in first.values():
        assert losses == pytest.approx(first["swarm-sgd"], rel=0.1)
    assert first["swarm-sgd"][0] != first["swarm-sgd"][1]


def test_counts_are_those_of_the_saved_models(compared: Compared) -> None:
    result = compared.result()
    for key in ("ar-sgd", "ad-psgd-slowmo-no-avg"):
        folder = compared.folder / "runs" / "hlf" / key / "rate-times-1" / "seed-2"
        run = PlannedRun("hlf", Variant.of(key), RunSpec.load(folder / "run.json"), "")
        counts = result.of("hlf", Variant.of(key))[1].counts
        assert counts == count(run, compared.dataset.files("test"))
        assert counts.correct == counts.is_correct.sum()
        assert len(counts.is_correct) == counts.num_events == 60


def test_times_are_measured_and_simulated(compared: Compared) -> None:
    timing = compared.result().timing
    assert {(each["method"], each["workers"]) for each in timing["hlf"].measured} >= {
        ("sgd", 1),
        ("ar-sgd", 2),
        ("ad-psgd", 2),
        ("swarm-sgd", 2),
    }
    assert (compared.folder / "calibration.json").exists()
    assert [max(each["workers"]) for each in timing["hlf"].scaling] == [4, 4]
    assert timing["particles"].scaling == []
    seeds = {"hlf": 2, "particles": 1}
    for model, each in timing.items():
        runs = {key: [len(run["val_accuracy"]) for run in found] for key, found in each.convergence.items()}
        assert runs == {variant.key: [SMALL["epochs"][model]] * seeds[model] for variant in BEST}  # type: ignore[index]
        assert [(check["method"], check["workers"]) for check in each.checks] == [
            ("ar-sgd", 2),
            ("ad-psgd", 2),
            ("swarm-sgd", 2),
        ]
        assert set(each.epochs) == {variant.key for variant in PLAIN}
        assert each.cluster["step_seconds"] + each.cluster["event_seconds"] > 0


def test_the_page_and_its_figures_are_there(compared: Compared) -> None:
    page = (compared.folder / "comparison.md").read_text()
    links = re.findall(r"\]\((figures/[^)]+)\)", page)
    assert len(links) == 12
    assert all((compared.folder / link).exists() for link in links)
    assert f"python -m pipeline compare thesis --config {compared.config}" in page
    assert "technical sample" in page
    assert "N = 60 test events" in page
    assert f"comparison: {compared.folder / 'comparison.md'}" in compared.first.stderr
    assert "hlf: 8 method(s) on 2 worker(s): 16 run(s)" in compared.first.stderr


def test_the_same_command_draws_again_from_the_json_alone(compared: Compared) -> None:
    kept = compared.folder.with_name("kept")
    shutil.copytree(compared.folder, kept)
    try:
        before = (compared.folder / "comparison.json").read_bytes()
        page = (compared.folder / "comparison.md").read_text()
        for name in ("runs", "timing", "figures", "jobs"):
            shutil.rmtree(compared.folder / name)
        done = compared.again("--set", "report.sample_note=another note")
        assert done.returncode == 0, done.stderr
        assert "all runs are done; redrawing" in done.stderr
        assert (compared.folder / "comparison.json").read_bytes() == before
        assert (compared.folder / "comparison.md").read_text() == page
        assert len(list((compared.folder / "figures").glob("*.pdf"))) == 12
        assert not (compared.folder / "runs").exists()
    finally:
        shutil.rmtree(compared.folder)
        kept.rename(compared.folder)


def test_more_seeds_train_only_what_is_new(compared: Compared) -> None:
    kept = compared.folder / "runs" / "hlf" / "ar-sgd" / "rate-times-1" / "seed-1" / "summary.json"
    before = kept.stat().st_mtime_ns
    done = compared.again("--set", "compare.seeds.hlf=3", "--set", "compare.models=[hlf]")
    assert done.returncode == 0, done.stderr
    assert "hlf: 8 method(s) on 2 worker(s): 24 run(s), 16 done before" in done.stderr
    assert kept.stat().st_mtime_ns == before
    assert [run.seed for run in compared.result().of("hlf", REFERENCE)] == [1, 2, 3]


def invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_an_unknown_comparison_is_refused_with_the_nearest_name() -> None:
    done = invoke("compare", "thesys")
    assert done.exit_code == Exit.USAGE
    assert "compare thesys: there is no such comparison. Did you mean 'thesis'?" in done.output


def test_its_command_is_kept_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def compare(run_folder: RunFolder, name: str, *, command: str, force: bool) -> Path:
        made.append(_made(run_folder, command))
        return tmp_path

    monkeypatch.setattr("pipeline.commands.compare.compare", compare)
    change = 'spark.conf={"spark.my.password": "hush1,hush2 hush3"}'
    words = ["compare", "thesis", "--config", "demo", "--set", change, "--set", "train.epochs=5"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == Exit.OK, done.output
    assert made[0]["command"] == (
        "python -m pipeline compare thesis --config demo --set 'spark.conf=***' --set train.epochs=5"
    )


def test_without_features_the_stage_to_run_is_named(tmp_path: Path) -> None:
    done = invoke("compare", "thesis", "--config", config_of(tmp_path, tmp_path / "run"))
    assert done.exit_code == Exit.NOT_THERE_YET
    assert "Run `python -m pipeline features` first" in done.output


def test_too_many_workers_are_refused_before_anything_runs(tmp_path: Path) -> None:
    made_features(tmp_path / "run", rows={"train": [20] * 3, "val": [10], "test": [10]})
    config = config_of(tmp_path, tmp_path / "run")
    done = invoke("compare", "thesis", "--workers", "4", "--config", config)
    assert done.exit_code == Exit.USER_ERROR
    assert "fewer than the 4 workers" in done.output
    assert "set features.feed_workers: 4" in done.output


def test_copies_of_few_events_are_not_compared(tmp_path: Path) -> None:
    made_features(tmp_path / "run", rows={"train": [20] * 3, "val": [10], "test": [10]}, load_test=True)
    done = invoke("compare", "thesis", "--config", config_of(tmp_path, tmp_path / "run"))
    assert done.exit_code == Exit.USER_ERROR
    assert "A model or a metric of them means nothing" in " ".join(done.output.split())
