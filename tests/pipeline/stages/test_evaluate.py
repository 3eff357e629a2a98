"""The stage `evaluate`: what it reads from the stages before it, and what it predicts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from feature_datasets import write_dataset
from rich.console import Console
from two_samples import finished_stages, two_samples

from features.kernels import EnergyScales
from models.errors import PluginCodeError, UndefinedMetricError
from models.prediction import Candidate
from pipeline.config import Config
from pipeline.errors import MissingInputError
from pipeline.runs.trained_models import FoundModel
from pipeline.stages.evaluate import Evaluate, evaluate_models
from pipeline.stages.evaluation_task import SelectionRates, make_task
from pipeline.stages.shifted_events import shifted_test_events
from training.settings import TrainSettings


def test_other_classes_than_those_of_the_features_are_refused(tmp_path: Path) -> None:
    config = two_samples(tmp_path)

    with pytest.raises(
        MissingInputError, match=r"made for the classes \['a', 'b'\].*pipeline features` first"
    ):
        make_task(config, ["a", "b"], SelectionRates(), config.features, [])


def test_the_name_of_an_implied_signal_makes_nothing_stale(tmp_path: Path) -> None:
    config = two_samples(tmp_path).model_copy(update={"classes": ["QCD", "ttbar"]})

    def items_of_signal(signal: str | None) -> dict[str, Any]:
        evaluate = config.evaluate.model_copy(update={"signal": signal})
        return Evaluate().config_items(config.model_copy(update={"evaluate": evaluate}))

    assert items_of_signal(None) == items_of_signal("ttbar")
    assert items_of_signal("ttbar") != items_of_signal("QCD")


def test_the_evaluation_continues_without_trees_if_they_cannot_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UndefinedMetricError("trees cannot learn ['top']: no events of positive weight.")

    evaluated: list[object] = []

    def evaluate(candidates: Sequence[object], *_: object, **__: object) -> dict[str, Any]:
        evaluated.extend(candidates)
        return {"runs": {"hlf": {"not_measurable": ["it has no weight."]}}}

    monkeypatch.setattr("models.evaluation.boosted_trees.boosted_trees", refuse)
    monkeypatch.setattr("models.evaluation.evaluation.evaluate", evaluate)
    monkeypatch.setattr("pipeline.stages.evaluate.evaluation_tables", lambda _: [])
    config = two_samples(tmp_path)
    output = io.StringIO()
    dataset: Any = SimpleNamespace(
        classes=["QCD", "top"], class_weights=(1.0, 1.0), files=lambda _: []
    )
    network: Any = "hlf"

    evaluate_models(
        config,
        Console(file=output, width=200),
        [network],
        make_task(config, config.classes, SelectionRates(), config.features, []),
        [],
        tmp_path,
        reference=dataset,
        train=[],
    )

    assert evaluated == ["hlf"]
    assert "note: no boosted trees as a reference: trees cannot learn ['top']" in output.getvalue()
    assert "note: hlf: it has no weight." in output.getvalue()


@pytest.mark.parametrize(
    ("systematics", "expected"),
    [
        (
            {"jet_scale": 0.02, "met_scale": 0.1},
            {
                "jet scale +2 %": EnergyScales(jets=1.02),
                "jet scale -2 %": EnergyScales(jets=0.98),
                "MET scale +10 %": EnergyScales(met=1.1),
                "MET scale -10 %": EnergyScales(met=0.9),
            },
        ),
        (
            {"met_scale": 0.1},
            {"MET scale +10 %": EnergyScales(met=1.1), "MET scale -10 %": EnergyScales(met=0.9)},
        ),
        ({}, {}),
    ],
    ids=["jets and MET", "MET", "none"],
)
def test_a_shift_of_two_percent_multiplies_the_scale_of_its_name_by_1_02(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    systematics: dict[str, float],
    expected: dict[str, EnergyScales],
) -> None:
    dataset = write_dataset(tmp_path / "set", rows={"train": [4], "val": [5], "test": [6]})
    upstream = finished_stages(tmp_path)
    upstream["ingest"].manifest.outputs = []
    test_events: list[Any] = []

    def record_events(
        _chunks: Any, reference: Any, _selection: Any, scales: list[EnergyScales]
    ) -> list[EnergyScales]:
        test_events.extend(reference)
        return scales

    monkeypatch.setattr("features.shifts.shifted_features", record_events)
    no_shifts = {"jet_scale": 0.0, "met_scale": 0.0}
    config = two_samples(tmp_path, systematics=no_shifts | systematics)
    context: Any = SimpleNamespace(config=config, upstream=upstream)

    assert shifted_test_events(context, dataset) == expected
    assert len(test_events) == (6 if expected else 0)


@pytest.mark.parametrize("num_predicted", [5, 6])
def test_networks_predict_the_test_split_and_are_compared_with_the_training_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_predicted: int
) -> None:
    dataset = write_dataset(tmp_path / "set", rows={"train": [4], "val": [5], "test": [6]})
    accuracy = {"value": 0.5, "error": 0.1}
    metrics = {"runs": {"hlf": {"accuracy": accuracy, "num_events": num_predicted}}}
    evaluate_models = Mock(return_value=metrics)
    monkeypatch.setattr("pipeline.runs.trained_models.trained_models", Mock(return_value=[]))
    monkeypatch.setattr("pipeline.stages.evaluate.task_of_run", Mock())
    monkeypatch.setattr("pipeline.stages.evaluate.shifted_test_events", Mock(return_value={}))
    monkeypatch.setattr("pipeline.stages.evaluate.evaluate_models", evaluate_models)
    upstream = finished_stages(tmp_path)
    upstream["features"] = replace(upstream["features"], folder=dataset.folder)
    context: Any = SimpleNamespace(
        config=two_samples(tmp_path),
        upstream=upstream,
        console=None,
        out_dir=tmp_path / "out",
        inputs=SimpleNamespace(details=None),
    )

    (check,) = Evaluate().run(context).checks

    _config, _console, _candidates, _task, test_files, _folder = evaluate_models.call_args.args
    options = evaluate_models.call_args.kwargs
    assert test_files == dataset.files("test")
    assert options["train"] == dataset.files("train")
    assert options["reference"].folder == dataset.folder
    assert check.passed is (num_predicted == 6)


@pytest.mark.parametrize(
    ("settings", "computes_features"),
    [({}, False), ({"data": ["data.root"]}, True), ({"systematics": {"jet_scale": 0.02}}, True)],
    ids=["test split", "data", "shifted events"],
)
def test_a_model_is_refused_where_other_code_of_a_plugin_computes_features(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    computes_features: bool,
) -> None:
    code = {"feature own": "digest of the training"}
    dataset = write_dataset(tmp_path / "set", rows={"train": [4], "val": [5], "test": [6]})
    dataset._replace(plugin_code=code).save(columns={})
    network: Any = None
    model = FoundModel(Candidate("hlf", network), [], dataset.definitions, None, {}, code)
    monkeypatch.setattr("pipeline.runs.trained_models.trained_models", lambda *_: [model])
    monkeypatch.setattr("pipeline.runs.trained_models.check_definitions", Mock())
    monkeypatch.setattr("pipeline.stages.evaluate.task_of_run", Mock(side_effect=InterruptedError))
    upstream = finished_stages(tmp_path)
    upstream["features"] = replace(upstream["features"], folder=dataset.folder)
    config = two_samples(tmp_path, qcd=None, ttbar=None, **settings)
    context: Any = SimpleNamespace(config=config, upstream=upstream, console=None)

    # The test split was computed by the code of the training, and is evaluated.
    with pytest.raises(PluginCodeError if computes_features else InterruptedError):
        Evaluate().run(context)


def test_only_columns_and_classes_of_the_decorrelation_concern_the_evaluation(
    tmp_path: Path,
) -> None:
    config = two_samples(tmp_path)

    def with_strength(strength: float, column: str = "met") -> Config:
        decorrelate = {"from": [column], "strength": strength, "classes": config.classes[:1]}
        train = TrainSettings.model_validate({"decorrelate": decorrelate})
        return config.model_copy(update={"train": train})

    items = Evaluate().config_items(with_strength(1))

    assert Evaluate().config_items(with_strength(2)) == items
    assert Evaluate().config_items(with_strength(1, "ht")) != items
    assert "train.decorrelate" not in Evaluate().config_items(config)
    task = make_task(with_strength(1), config.classes, SelectionRates(), config.features, [])
    assert (task.independent_of, task.independent_within) == (["met"], [0])
