"""The runs that check the simulator take the way of averaging that they are predicted with."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_study import made_study

from training.settings import TrainSettings
from training.simulation.probe import Measurement
from training.studies.calibration import plan_calibration, read_or_measure
from training.studies.plan import Subject
from training.workloads.images_settings import MnistSettings


def test_a_method_of_one_worker_was_checked_with_two(tmp_path: Path) -> None:
    """Only the first method of one worker was left out. A bound on the staleness sent messages where none belong."""
    study = made_study(
        methods={
            "one": {"train": {"algorithm": {"name": "ar-sgd"}, "workers": 1}},
            "sgd": {"train": {"algorithm": {"name": "sgd"}, "workers": 1}},
            "bound": {"train": {"algorithm": {"name": "ad-psgd"}, "workers": 2, "staleness_bound": 2}},
        },
        reference="bound",
        claims=[],
    )
    plan = plan_calibration(study, Subject(MnistSettings()), TrainSettings(), tmp_path, cores=2, code_of=lambda *_: "")
    assert [run.method for run in plan.checks] == ["one", "bound"]
    assert {run.train.staleness_bound for run in (*plan.alone, *plan.apart)} == {None}


def test_messages_were_not_measured_anew_after_a_change_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([1.0, 2.0])
    monkeypatch.setattr(
        "training.studies.calibration.measure_messages", lambda *_: [Measurement("memory", 2, 256, next(seconds))]
    )
    found = [read_or_measure(tmp_path, TrainSettings(), code=code)[0].seconds for code in ("old", "old", "new")]
    assert found == [1.0, 1.0, 2.0]
