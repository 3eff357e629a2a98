"""The stage `evaluate`: what it reads from the stages before it, and its rates."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from example_versions import example_versions
from feature_datasets import write_dataset
from rich.console import Console

from features.kernels import EnergyScales
from features.settings import FeatureSettings
from models.errors import PluginCodeError, UndefinedMetricError
from models.evaluation.rates import Rates
from models.prediction import Candidate
from pipeline.config import Config
from pipeline.errors import MissingInputError
from pipeline.runs.manifest import StageManifest
from pipeline.runs.trained_models import FoundModel
from pipeline.runs.version import Version
from pipeline.stages.evaluate import Evaluate, evaluate_models
from pipeline.stages.evaluation_task import SelectionRates, make_task, rates_of_run, task_of_run
from pipeline.stages.shifted_events import shifted_test_events
from training.settings import TrainSettings


def finished_stages(folder: Path) -> dict[str, Version]:
    """Finished stages of the samples `qcd` and `ttbar`, of which 4 of 10 events are selected."""
    stages = {}
    for name, version in example_versions(folder).items():
        manifest_text = version.manifest.model_dump_json().replace("tt&bar", "ttbar")
        manifest = StageManifest.model_validate_json(manifest_text)
        stages[name] = replace(version, manifest=manifest)
    return stages


def two_samples(
    folder: Path,
    *,
    qcd: float | None = 1e5,
    ttbar: float | None = 800.0,
    features: dict[str, Any] | None = None,
    **evaluate: Any,
) -> Config:
    """A config of two samples with these cross-sections [pb]."""
    return Config.model_validate(
        {
            "run_dir": folder,
            "classes": ["QCD", "top"],
            "samples": [
                {"name": "qcd", "label": 0, "files": ["a.root"], "cross_section_pb": qcd},
                {"name": "ttbar", "label": 1, "files": ["a.root"], "cross_section_pb": ttbar},
            ],
            "features": features or {},
            "evaluate": {"signal": "top", **evaluate},
        }
    )


def known_rates(config: Config, stages: dict[str, Version]) -> Rates:
    rates = rates_of_run(config, stages).known
    assert rates is not None
    return rates


def test_rates_are_cross_section_times_luminosity_times_efficiency_of_the_selection(
    tmp_path: Path,
) -> None:
    rates = known_rates(two_samples(tmp_path), finished_stages(tmp_path))

    # 4 of 10 events pass; the luminosity is 0.02 / (pb s).
    qcd, ttbar = rates.of_samples["qcd"], rates.of_samples["ttbar"]
    assert (qcd.value, ttbar.value) == pytest.approx((800, 6.4))
    assert rates.of_classes(["QCD", "top"]) == pytest.approx({"QCD": 800, "top": 6.4})
    assert qcd.error == pytest.approx(800 * 0.19 / 0.4, rel=0.1)


def test_an_offline_analysis_counts_the_events_of_its_luminosity(tmp_path: Path) -> None:
    luminosity = {"integrated_luminosity": 30.0}
    config = two_samples(tmp_path, features=luminosity, data=["data.root"])
    stages = finished_stages(tmp_path)
    features_config = stages["features"].manifest.config
    features_config["features"] |= luminosity

    rates = known_rates(config, stages)
    settings = FeatureSettings.model_validate(features_config["features"])
    task = make_task(config, config.classes, SelectionRates(rates), settings, [])

    assert rates.are_events
    # 4 of 10 events pass.
    assert rates.of_class(0) == pytest.approx(0.4 * 30 * 1e5)
    assert rates.of_class(1) == pytest.approx(0.4 * 30 * 800)
    assert task.expected == pytest.approx({0: rates.of_class(0), 1: rates.of_class(1)})
    assert task.labels_of_expected.luminosity == "30 pb⁻¹"


@pytest.mark.parametrize(
    ("evaluate", "integrated", "expected"),
    [
        ({}, None, 2e34),
        ({"luminosity": 1e34}, None, 1e34),
        ({"data": ["data.root"]}, 3e4, None),
        ({}, 3e4, None),
        # The default is set too if the config states it.
        ({}, 1.0, None),
        # The setting of `evaluate` prevails.
        ({"data": ["data.root"], "luminosity": 1e34}, 3e4, 1e34),
    ],
)
def test_an_offline_analysis_has_trigger_rates_only_for_a_set_luminosity(
    tmp_path: Path, evaluate: dict[str, Any], integrated: float | None, expected: float | None
) -> None:
    features = {} if integrated is None else {"integrated_luminosity": integrated}

    config = two_samples(tmp_path, features=features, **evaluate)

    assert config.trigger_luminosity == expected
    assert Evaluate().config_items(config)["evaluate.luminosity"] == expected


def test_the_error_of_a_cross_section_is_apart_from_that_of_the_selection(tmp_path: Path) -> None:
    config = two_samples(tmp_path)
    stages = finished_stages(tmp_path)
    exact = known_rates(config, stages)

    config.samples[0] = config.samples[0].model_copy(update={"cross_section_error_pb": 3e4})
    uncertain = known_rates(config, stages)

    assert uncertain.of_samples == exact.of_samples
    assert exact.cross_sections == {"qcd": ("qcd", 0.0), "ttbar": ("ttbar", 0.0)}
    assert uncertain.cross_sections == {"qcd": ("qcd", 0.3), "ttbar": ("ttbar", 0.0)}
    assert Evaluate().config_items(config)["samples.qcd.cross_section_error_pb"] == 3e4


def test_rates_have_the_labels_of_the_ingested_events(tmp_path: Path) -> None:
    config = two_samples(tmp_path)
    for index, sample in enumerate(config.samples):
        config.samples[index] = sample.model_copy(update={"label": 1 - sample.label})

    rates = known_rates(config, finished_stages(tmp_path))

    assert rates.labels == {"qcd": 0, "ttbar": 1}


def test_a_missing_cross_section_is_the_reason_why_there_are_no_rates(tmp_path: Path) -> None:
    rates = rates_of_run(two_samples(tmp_path, ttbar=None), finished_stages(tmp_path))

    assert rates.known is None
    (reason,) = rates.reasons
    assert reason.startswith("there are no rates: the config has no cross_section_pb of ttbar.")


def test_the_evaluation_gets_the_reasons_why_there_are_no_rates(tmp_path: Path) -> None:
    config = two_samples(tmp_path, ttbar=None)
    stages = finished_stages(tmp_path)

    task = task_of_run(config, config.classes, stages)

    assert task.rates is None
    assert task.reasons_without_rates == rates_of_run(config, stages).reasons


def test_without_any_cross_section_nobody_asks_for_rates(tmp_path: Path) -> None:
    config = two_samples(tmp_path, qcd=None, ttbar=None)

    rates = rates_of_run(config, finished_stages(tmp_path))

    assert rates.known is None
    assert list(rates.reasons) == []


def test_a_sample_that_was_renamed_after_ingest_is_the_reason_why_there_are_no_rates(
    tmp_path: Path,
) -> None:
    config = two_samples(tmp_path)
    config.samples[1] = config.samples[1].model_copy(update={"name": "new-ttbar"})

    rates = rates_of_run(config, finished_stages(tmp_path))

    assert rates.known is None
    old_name, new_name = rates.reasons
    assert "sample ttbar was ingested, and is not in the config any more." in old_name
    assert "Did you mean 'new-ttbar'?" in old_name
    assert "ingest did not read new-ttbar of the config." in new_name


def test_a_sample_that_left_the_config_is_the_reason_why_there_are_no_rates(
    tmp_path: Path,
) -> None:
    stages = finished_stages(tmp_path)
    for stage in stages.values():
        gone = {"name": "gone", "label": 0, "cross_section_pb": 7.0}
        stage.manifest.config["samples"].append(gone)
    ingest_counters = stages["ingest"].manifest.counters
    for counter in ("samples", "weights"):
        ingest_counters[counter]["gone"] = ingest_counters[counter]["qcd"]
    feature_counters = stages["features"].manifest.counters
    for counter in ("samples", "weights", "normalisation"):
        feature_counters[counter]["gone"] = feature_counters[counter]["qcd"]

    rates = rates_of_run(two_samples(tmp_path), stages)

    assert rates.known is None
    (reason,) = rates.reasons
    assert "sample gone was ingested, and is not in the config any more. Call it" in reason


def test_an_offline_analysis_says_why_there_are_no_numbers_of_events(tmp_path: Path) -> None:
    config = two_samples(tmp_path, features={"integrated_luminosity": 10.0})
    config.samples[0] = config.samples[0].model_copy(update={"cross_section_pb": None})

    (reason,) = rates_of_run(config, finished_stages(tmp_path)).reasons

    assert reason.startswith("there are no numbers of events: the config has no cross_section_pb")


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
