"""Making the runs of a study: the load of the machine, stale code, settings without effect."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from example_study import example_check, example_result, example_study
from feature_datasets import write_dataset
from published_by_hand import publish
from trained_nights import TrainedNights

from hep_studies import study_runs
from hep_studies.plan import Subject
from hep_studies.study_files import Study
from hep_studies.study_result import RESULT_FILE, read_study_result
from hep_studies.study_runs import busy_cores, check_settings_have_effect, code_digest
from hep_studies.workloads.images_settings import MnistSettings
from models.networks.hlf_settings import HlfSettings
from pipeline.errors import ConfigError
from pipeline.runs import code_meaning
from training.settings import TrainSettings
from training.workloads.hep_settings import HepSettings

UNFINISHED: list[Any] = [SimpleNamespace(result=None)]


@pytest.fixture
def set_load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that sets the load of a machine of four cores [%]."""
    monkeypatch.setattr("psutil.cpu_count", lambda: 4)

    def set_percent(percent: float) -> None:
        monkeypatch.setattr("psutil.cpu_percent", lambda _: percent)

    return set_percent


def test_the_load_is_that_of_the_moment_and_not_of_the_study_before(
    tmp_path: Path, set_load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (9.0, 9.0, 9.0))
    set_load(75.0)

    assert busy_cores(UNFINISHED, tmp_path / "timing" / "load.json") == 3


@pytest.mark.parametrize("runs", [[], UNFINISHED], ids=["all finished", "unfinished"])
def test_a_study_that_began_on_a_busy_machine_keeps_its_load(
    tmp_path: Path, set_load: Any, runs: list[Any]
) -> None:
    set_load(75.0)
    busy_cores(UNFINISHED, tmp_path / "load.json")
    set_load(0.0)

    assert busy_cores(runs, tmp_path / "load.json") == 3


@pytest.mark.parametrize(
    ("module", "stale"),
    [
        ("training.algorithms.ad_psgd", {"simulated", "measured"}),
        ("models.networks.hlf", {"simulated", "measured"}),
        ("hep_studies.simulator.costs", {"simulated"}),
        ("training.transports.mpi", {"measured"}),
        ("hep_studies.run_in_simulator", {"simulated"}),
        # Other methods, networks, workloads, and what makes the page.
        ("training.algorithms.swarm_sgd", set()),
        ("models.networks.particles", set()),
        ("hep_studies.study", set()),
        ("hep_studies.compare", set()),
    ],
)
def test_runs_are_stale_when_their_own_code_changes(
    monkeypatch: pytest.MonkeyPatch, module: str, stale: set[str]
) -> None:
    subject = Subject(HepSettings(folder=Path("features"), network=HlfSettings()), "a")
    train = TrainSettings.model_validate({"workers": 2, "algorithm": "ad-psgd"})

    def digests() -> dict[str, str]:
        study_runs._digest_of_modules.cache_clear()
        return {
            "simulated": code_digest(subject, train, is_simulated=True),
            "measured": code_digest(subject, train, is_simulated=False),
        }

    old = digests()
    read = code_meaning._read_module

    def read_changed(name: str, file: Path, modified: int) -> Any:
        document = read(name, file, modified)
        return document._replace(digest="other") if name == module else document

    monkeypatch.setattr(code_meaning, "_read_module", read_changed)
    new = digests()
    study_runs._digest_of_modules.cache_clear()

    assert {execution for execution in new if new[execution] != old[execution]} == stale


def test_other_events_have_another_digest(tmp_path: Path) -> None:
    study = Study("example", "small", example_study(workload="hlf"))
    nights = TrainedNights(tmp_path)
    store = nights.run_folder.store("features")
    digests = []
    for seed in (1, 1, 2):
        folder = store.next_folder("ff" * 8)
        write_dataset(folder, rows={"train": [8], "val": [8], "test": [8]}, seed=seed)
        publish(nights.run_dir, "features", folder, counters={}, config=nights.config)
        subject, _ = study_runs.subject_of_study(nights.run_folder, study)
        digests.append(subject.data_digest)

    assert digests[0] == digests[1] != digests[2]


def test_models_of_a_study_state_the_code_of_their_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_runs, "network_code", lambda name: {f"network {name}": "now"})
    nights = TrainedNights(tmp_path)
    study = Study("example", "small", example_study(workload="hlf"))

    subject, _ = study_runs.subject_of_study(nights.run_folder, study)

    assert isinstance(subject.settings, HepSettings)
    assert subject.settings.plugin_code == {"network hlf": "now"}


def test_new_checks_of_the_times_reach_the_result_of_finished_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study("example", "small", example_study(workload=MnistSettings()))
    new_checks = [example_check("ad-psgd", 1.0, 0.5)]
    stored = example_result(study.settings, [], checks=[example_check("ad-psgd", 1.0, 1.0)])
    replaced: dict[str, Any] = {
        "busy_cores": lambda *_: 1.5,
        "check_times": lambda *_, **__: new_checks,
        "planned_runs": lambda *_, **__: [],
        "read_study_result": lambda _: stored,
        "digest_of_study": lambda *_: stored.digest,
    }
    for name, function in replaced.items():
        monkeypatch.setattr(study_runs, name, function)
    run_folder = TrainedNights(tmp_path).run_folder

    result = study_runs.run_study(run_folder, study, tmp_path, "compare")

    assert result.checks == new_checks
    assert read_study_result(tmp_path / RESULT_FILE).checks == new_checks


def test_settings_without_effect_on_one_worker_are_refused_for_all_runs_at_once() -> None:
    methods = {"ar-sgd": {"train": {}}, "local": {"train": {"algorithm": "local-sgd"}}}

    check_settings_have_effect(example_study(methods=methods, vary={"train.workers": [2, 4]}))
    with pytest.raises(
        ConfigError, match=r"no effect:\n  local, train.workers 1: train.algorithm: local-sgd .*\Z"
    ):
        check_settings_have_effect(example_study(methods=methods, vary={"train.workers": [1, 4]}))
