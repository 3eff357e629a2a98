"""The runs of a study: each is known by a digest of what its result depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from example_study import STUDY, example_plan, example_study

from hep_studies.plan import PlannedRun, Subject, digest_of_study, planned_runs
from models.networks.hlf_settings import HlfSettings
from training.settings import TrainSettings
from training.workloads.hep_settings import HepSettings

FEATURES = HepSettings(folder=Path("features"), network=HlfSettings(hidden=[4]))
RATES = {"train.learning_rate": [0.1, 0.2]}


def study_plan(*, data: str = "a", **study: Any) -> list[PlannedRun]:
    return example_plan(Subject(FEATURES, data), Path("study"), **study)


def test_runs_come_seed_by_seed_in_folders_of_their_own() -> None:
    runs = study_plan(vary=RATES, base={"seed": 5})

    assert [run.train.seed for run in runs] == [5] * 6 + [6] * 6
    assert len({run.folder for run in runs}) == len(runs)
    assert runs[0].folder.name == f"seed-5-{runs[0].digest}"


@pytest.mark.parametrize("execution", ["simulate", "mpi"])
@pytest.mark.parametrize(
    ("changes", "stale"),
    [
        ({"title": "Other words"}, []),
        ({"base": {"stall_seconds": 7.0, "epochs": 3}}, []),
        # Measured times depend on how ranks start, simulated times do not.
        ({"base": {"launcher_args": ["--bind-to", "core"]}}, ["mpi"]),
        ({"base": {"threads": 2}}, ["mpi"]),
        ({"cluster": {"jitter": 0.5}}, ["simulate"]),
        ({"train": {"workers": 4, "batch_size": 8}}, ["simulate", "mpi"]),
        ({"base": {"seed": 2}}, ["simulate", "mpi"]),
        ({"data": "b"}, ["simulate", "mpi"]),
        ({"code": "2"}, ["simulate", "mpi"]),
    ],
)
def test_a_run_is_stale_when_its_result_can_change(
    execution: str, changes: dict[str, Any], stale: list[str]
) -> None:
    run = study_plan(execution=execution)[0]

    changed_run = study_plan(execution=execution, **changes)[0]

    assert (changed_run.digest != run.digest) == (execution in stale)


@pytest.mark.parametrize(("execution", "num_digests"), [("simulate", 1), ("mpi", 2)])
def test_measured_times_depend_on_the_network_between_hosts(
    execution: str, num_digests: int
) -> None:
    digests = set()
    for network in (None, "ib0"):
        algorithm = {"name": "ad-psgd", "network": network}
        methods = {"ad-psgd": {"train": {"algorithm": algorithm}}}
        runs = study_plan(execution=execution, methods=methods, reference="ad-psgd")
        digests.add(runs[0].digest)

    assert len(digests) == num_digests


@pytest.mark.parametrize("execution", ["simulate", "mpi"])
def test_the_code_of_a_run_is_that_of_its_method_and_of_its_execution(execution: str) -> None:
    requests = set()

    def code_digest(_: Subject, train: TrainSettings, is_simulated: bool) -> str:
        requests.add((train.algorithm.name, is_simulated))
        return f"{train.algorithm.name} {is_simulated}"

    planned_runs(
        example_study(execution=execution),
        Subject(FEATURES, "a"),
        TrainSettings(),
        Path("study"),
        code_digest=code_digest,
    )

    is_simulated = execution == "simulate"
    assert requests == {(method, is_simulated) for method in ("ar-sgd", "sgd", "ad-psgd")}


def test_a_method_makes_only_its_own_runs_stale() -> None:
    ad_psgd = {
        "title": "AD-PSGD",
        "train": {"algorithm": {"name": "ad-psgd"}, "slowmo": {"tau": 3}},
    }

    runs = study_plan(methods={**STUDY["methods"], "ad-psgd": ad_psgd})

    digests = {run.digest for run in study_plan()}
    assert {run.method for run in runs if run.digest not in digests} == {"ad-psgd"}


def test_a_study_is_known_by_its_runs_and_by_what_is_compared() -> None:
    runs = study_plan(vary=RATES)
    study = example_study()
    at_best = example_study(vary=RATES, best_of=list(RATES))

    digest = digest_of_study(study, runs)

    assert digest_of_study(example_study(title="B"), runs) == digest
    assert digest_of_study(at_best, runs) != digest
    assert digest_of_study(study, runs[1:]) != digest
