"""The runs of a study: each is known by a digest of what its result depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from example_study import example_plan, example_study

from hep_studies.plan import PlannedRun, Subject, digest_of_study, planned_runs
from models.networks.hlf_settings import HlfSettings
from training.settings import TrainSettings
from training.workloads.hep_settings import HepSettings

NETWORK = HlfSettings(hidden=[4])


def runs_of(*, data: str = "a", **study: Any) -> list[PlannedRun]:
    return example_plan(
        Subject(HepSettings(folder=Path("features"), network=NETWORK), data), Path("study"), **study
    )


def test_runs_come_seed_by_seed_in_folders_of_their_own() -> None:
    runs = runs_of(vary={"train.learning_rate": [0.1, 0.2]}, base={"seed": 5})
    assert [run.train.seed for run in runs] == [5] * 6 + [6] * 6
    assert len({run.folder for run in runs}) == len(runs)
    assert runs[0].folder.name == f"seed-5-{runs[0].digest}"


@pytest.mark.parametrize("execution", ["simulate", "mpi"])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"title": "Other words"}, {"simulate": True, "mpi": True}),
        ({"base": {"stall_seconds": 7.0, "epochs": 3}}, {"simulate": True, "mpi": True}),
        # Measured times depend on how ranks start, simulated times do not.
        ({"base": {"launcher_args": ["--bind-to", "core"]}}, {"simulate": True, "mpi": False}),
        ({"base": {"threads": 2}}, {"simulate": True, "mpi": False}),
        ({"cluster": {"jitter": 0.5}}, {"simulate": False, "mpi": True}),
        ({"train": {"workers": 4, "batch_size": 8}}, {"simulate": False, "mpi": False}),
        ({"base": {"seed": 2}}, {"simulate": False, "mpi": False}),
        ({"data": "b"}, {"simulate": False, "mpi": False}),
        # `compare` said "all runs are done" after a fix of an algorithm.
        ({"code": "2"}, {"simulate": False, "mpi": False}),
    ],
)
def test_a_run_is_stale_when_its_result_can_change(
    execution: str, changes: dict[str, Any], expected: dict[str, bool]
) -> None:
    state_before, state_after = (
        runs_of(execution=execution)[0],
        runs_of(execution=execution, **changes)[0],
    )
    assert (state_before.digest == state_after.digest) == expected[execution]


def test_measured_times_depend_on_the_network_between_hosts() -> None:
    def of(execution: str, network: str | None) -> str:
        algorithm = {"name": "ad-psgd", "network": network}
        methods = {"ad-psgd": {"train": {"algorithm": algorithm}}}
        return runs_of(execution=execution, methods=methods, reference="ad-psgd")[0].digest

    assert of("simulate", None) == of("simulate", "ib0")
    assert of("mpi", None) != of("mpi", "ib0")


@pytest.mark.parametrize("execution", ["simulate", "mpi"])
def test_the_code_of_a_run_is_that_of_its_method_and_of_what_executes_it(execution: str) -> None:
    asked = set()

    def code_digest(_: Subject, train: TrainSettings, is_simulated: bool) -> str:
        asked.add((train.algorithm.name, is_simulated))
        return f"{train.algorithm.name} {is_simulated}"

    subject = Subject(HepSettings(folder=Path("features"), network=NETWORK), "a")
    planned_runs(
        example_study(execution=execution),
        subject,
        TrainSettings(),
        Path("study"),
        code_digest=code_digest,
    )
    assert asked == {(name, execution == "simulate") for name in ("ar-sgd", "sgd", "ad-psgd")}


def test_a_method_makes_only_its_own_runs_stale() -> None:
    changed = {**example_study().model_dump()["methods"]}
    changed["ad-psgd"] = {
        "title": "AD-PSGD",
        "train": {"algorithm": {"name": "ad-psgd"}, "slowmo": {"tau": 3}},
    }
    pairs = zip(runs_of(), runs_of(methods=changed), strict=True)
    assert {first.method for first, second in pairs if first.digest != second.digest} == {"ad-psgd"}


def test_a_study_is_known_by_its_runs_and_by_what_is_compared() -> None:
    runs, study = runs_of(vary={"train.learning_rate": [0.1, 0.2]}), example_study()
    selected = example_study(
        vary={"train.learning_rate": [0.1, 0.2]}, best_of=["train.learning_rate"]
    )
    assert (
        len(
            {
                digest_of_study(study, runs),
                digest_of_study(selected, runs),
                digest_of_study(study, runs[1:]),
            }
        )
        == 3
    )
    assert digest_of_study(study, runs) == digest_of_study(example_study(title="B"), runs)
