"""What the stage `evaluate` takes from the stages before it."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
from example_versions import example_versions
from feature_datasets import write_dataset
from rich.console import Console

from features.kernels import EnergyScales
from features.settings import FeatureSettings
from models.errors import UndefinedMetricError
from pipeline.config import Config
from pipeline.errors import MissingInputError
from pipeline.runs.manifest import StageManifest
from pipeline.runs.version import Version
from pipeline.stages.evaluate import Evaluate, evaluate_models
from pipeline.stages.evaluation_task import make_task, rates_of_run
from pipeline.stages.shifted_events import shifted_test_events

if TYPE_CHECKING:
    from features.dataset import FeatureDataset
    from models.prediction import Candidate


def finished(folder: Path) -> dict[str, Version]:
    """Stages of which 4 of 10 events of each sample are left."""
    return {
        name: replace(
            version,
            manifest=StageManifest.model_validate_json(
                version.manifest.model_dump_json().replace("tt&bar", "ttbar")
            ),
        )
        for name, version in example_versions(folder).items()
    }


def made_config(
    folder: Path,
    cross_sections: tuple[float | None, float | None],
    features: dict[str, Any] | None = None,
    **evaluate: Any,
) -> Config:
    samples = [
        {"name": name, "label": label, "files": ["a.root"], "cross_section_pb": cross_section}
        for label, (name, cross_section) in enumerate(
            zip(("qcd", "ttbar"), cross_sections, strict=True)
        )
    ]
    return Config.model_validate(
        {
            "run_dir": folder,
            "classes": ["QCD", "top"],
            "samples": samples,
            "features": features or {},
            "evaluate": {"signal": "top", **evaluate},
        }
    )


def test_rates_are_cross_section_times_luminosity_times_efficiency_of_the_selection(
    tmp_path: Path,
) -> None:
    rates = rates_of_run(made_config(tmp_path, (1e5, 800.0)), finished(tmp_path))
    assert rates is not None
    # 4 of 10 events pass; the luminosity is 0.02 / (pb s).
    assert {name: rate.value for name, rate in rates.of_samples.items()} == pytest.approx(
        {"qcd": 800, "ttbar": 6.4}
    )
    assert rates.of_classes(["QCD", "top"]) == pytest.approx({"QCD": 800, "top": 6.4})
    assert rates.of_samples["qcd"].error == pytest.approx(800 * 0.19 / 0.4, rel=0.1)


def test_an_offline_analysis_counts_the_events_of_its_luminosity(tmp_path: Path) -> None:
    stated = {"integrated_luminosity": 30.0}
    config, stages = (
        made_config(tmp_path, (1e5, 800.0), stated, data=["data.root"]),
        finished(tmp_path),
    )
    features = stages["features"].manifest.config["features"] | stated
    stages["features"].manifest.config["features"] = features
    rates = rates_of_run(config, stages)
    assert rates is not None
    assert rates.are_events
    # 4 of 10 events pass.
    assert rates.of_classes(["QCD", "top"]) == pytest.approx(
        {"QCD": 0.4 * 30 * 1e5, "top": 0.4 * 30 * 800}
    )
    task = make_task(config, config.classes, rates, FeatureSettings.model_validate(features), [])
    assert task.expected == pytest.approx({0: rates.of_class(0), 1: rates.of_class(1)})
    assert task.labels_of_expected.luminosity == "30 pb⁻¹"


@pytest.mark.parametrize(
    ("evaluate", "luminosity", "expected"),
    [
        ({}, None, 2e34),
        ({"luminosity": 1e34}, None, 1e34),
        ({"data": ["data.root"]}, 3e4, None),
        ({}, 3e4, None),
        # It is stated, although it is that of the default.
        ({}, 1.0, None),
        # What is set prevails.
        ({"data": ["data.root"], "luminosity": 1e34}, 3e4, 1e34),
    ],
)
def test_without_a_set_luminosity_an_offline_analysis_has_no_trigger_rates(
    tmp_path: Path, evaluate: dict[str, Any], luminosity: float | None, expected: float | None
) -> None:
    features = {} if luminosity is None else {"integrated_luminosity": luminosity}
    config = made_config(tmp_path, (1e5, 800.0), features=features, **evaluate)
    assert config.trigger_luminosity == expected
    assert Evaluate().config_items(config)["evaluate.luminosity"] == expected


def test_without_trees_that_learn_the_evaluation_continues_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reference:
        classes: ClassVar = ["QCD", "top"]
        class_weights = (1.0, 1.0)

        def files(self, _: str) -> list[Path]:
            return []

    def refuse(*_: object, **__: object) -> None:
        raise UndefinedMetricError("trees cannot learn ['top']: no events of positive weight.")

    options: list[object] = []

    def evaluate(candidates: Sequence[object], *_: object, **__: object) -> dict[str, Any]:
        options.extend(candidates)
        return {"runs": {"hlf": {"not_measurable": ["it has no weight."]}}}

    monkeypatch.setattr("models.evaluation.boosted_trees.boosted_trees", refuse)
    monkeypatch.setattr("models.evaluation.evaluation.evaluate", evaluate)
    monkeypatch.setattr("pipeline.stages.evaluate.evaluation_tables", lambda _: [])
    config, text = made_config(tmp_path, (1e5, 800.0)), io.StringIO()
    task = make_task(config, config.classes, None, config.features, [])
    console, reference = Console(file=text, width=200), cast("FeatureDataset", Reference())
    evaluate_models(
        config,
        console,
        [cast("Candidate", "hlf")],
        task,
        [],
        tmp_path,
        reference=reference,
        train=[],
    )
    assert options == ["hlf"]
    assert "note: no boosted trees as a reference: trees cannot learn ['top']" in text.getvalue()
    assert "note: hlf: it has no weight." in text.getvalue()


def test_the_error_of_a_cross_section_reached_no_rate(tmp_path: Path) -> None:
    config = made_config(tmp_path, (1e5, 800.0))
    stages = finished(tmp_path)
    rates_before_before = rates_of_run(config, stages)
    config.samples[0] = config.samples[0].model_copy(update={"cross_section_error_pb": 3e4})
    rates_before_after = rates_of_run(config, stages)
    assert rates_before_before is not None
    assert rates_before_after is not None
    assert rates_before_after.of_samples["ttbar"] == rates_before_before.of_samples["ttbar"]
    qcd = rates_before_after.of_samples["qcd"]
    assert qcd.value == rates_before_before.of_samples["qcd"].value
    assert qcd.error == pytest.approx(
        math.hypot(rates_before_before.of_samples["qcd"].error, 0.3 * qcd.value)
    )
    assert Evaluate().config_items(config)["samples.qcd.cross_section_error_pb"] == 3e4


def test_rates_have_the_labels_of_the_ingested_events(tmp_path: Path) -> None:
    """Its test events have the label that it had when they were ingested."""
    config = made_config(tmp_path, (1e5, 800.0))
    swapped = [sample.model_copy(update={"label": 1 - sample.label}) for sample in config.samples]
    rates = rates_of_run(config.model_copy(update={"samples": swapped}), finished(tmp_path))
    assert rates is not None
    assert rates.labels == {"qcd": 0, "ttbar": 1}


def test_without_a_cross_section_there_are_no_rates(tmp_path: Path) -> None:
    assert rates_of_run(made_config(tmp_path, (1e5, None)), finished(tmp_path)) is None


@pytest.mark.parametrize("cross_sections", [(1e5, None), (1e5, 800.0)])
def test_a_sample_that_was_renamed_after_ingest_has_no_rate(
    tmp_path: Path, cross_sections: tuple[float, float | None]
) -> None:
    config = made_config(tmp_path, cross_sections)
    renamed = [
        sample.model_copy(update={"name": f"new-{sample.name}"}) for sample in config.samples
    ]
    assert rates_of_run(config.model_copy(update={"samples": renamed}), finished(tmp_path)) is None


def test_a_sample_that_left_the_config_has_no_rate(tmp_path: Path) -> None:
    stages = finished(tmp_path)
    config = made_config(tmp_path, (1e5, 800.0))
    for stage in stages.values():
        stage.manifest.config["samples"].append(
            {"name": "gone", "label": 0, "cross_section_pb": 7.0}
        )
    # Its test events are mixed by rates, and it has none.
    assert rates_of_run(config, stages) is None


def test_other_classes_than_those_of_the_features_are_refused(tmp_path: Path) -> None:
    config = made_config(tmp_path, (1e5, 800.0))
    with pytest.raises(
        MissingInputError, match=r"made for the classes \['a', 'b'\].*pipeline features` first"
    ):
        make_task(config, ["a", "b"], None, config.features, [])


def test_the_name_of_an_implied_signal_makes_nothing_stale(tmp_path: Path) -> None:
    config = made_config(tmp_path, (1e5, 800.0)).model_copy(update={"classes": ["QCD", "ttbar"]})
    signals = [
        config.evaluate.model_copy(update={"signal": signal}) for signal in (None, "ttbar", "QCD")
    ]
    items = [
        Evaluate().config_items(config.model_copy(update={"evaluate": signal}))
        for signal in signals
    ]
    assert items[0] == items[1] != items[2]


def test_a_shift_of_two_percent_multiplies_the_scale_of_its_name_by_1_02(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "set", rows={"train": [4], "val": [5], "test": [6]})
    upstream = finished(tmp_path)
    upstream["ingest"].manifest.outputs = []
    asked: list[Any] = []

    def noted(
        _chunks: Any, reference: Any, _selection: Any, scales: list[EnergyScales]
    ) -> list[EnergyScales]:
        asked.extend(reference)
        return scales

    monkeypatch.setattr("features.shifts.shifted_features", noted)
    for systematics, expected in (
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
    ):
        asked.clear()
        config = made_config(
            tmp_path, (1e5, 800.0), systematics={"jet_scale": 0.0, "met_scale": 0.0, **systematics}
        )
        context: Any = SimpleNamespace(config=config, upstream=upstream)
        assert shifted_test_events(context, dataset) == expected
        assert len(asked) == (6 if expected else 0)


@pytest.mark.parametrize("num_predicted", [5, 6])
def test_networks_predict_the_test_split_and_are_compared_with_the_training_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_predicted: int
) -> None:
    dataset = write_dataset(tmp_path / "set", rows={"train": [4], "val": [5], "test": [6]})
    asked: dict[str, Any] = {}

    def evaluated(
        _config: Any,
        _console: Any,
        _candidates: Any,
        _task: Any,
        test: Any,
        *_: Any,
        **options: Any,
    ) -> Any:
        asked.update(options, test=test)
        return {
            "runs": {"hlf": {"accuracy": {"value": 0.5, "error": 0.1}, "num_events": num_predicted}}
        }

    monkeypatch.setattr("pipeline.runs.trained_models.trained_models", lambda *_: [])
    for name, replacement in {"task_of_run": None, "shifted_test_events": {}}.items():
        monkeypatch.setattr(
            f"pipeline.stages.evaluate.{name}", lambda *_, replacement=replacement: replacement
        )
    monkeypatch.setattr("pipeline.stages.evaluate.evaluate_models", evaluated)
    upstream = finished(tmp_path)
    upstream["features"] = replace(upstream["features"], folder=dataset.folder)
    config = made_config(tmp_path, (1e5, 800.0))
    simple_namespace = SimpleNamespace(details=None)
    context: Any = SimpleNamespace(
        config=config,
        upstream=upstream,
        console=None,
        out_dir=tmp_path / "out",
        inputs=simple_namespace,
    )
    (check,) = Evaluate().run(context).checks
    assert [asked[split] for split in ("test", "train")] == [
        dataset.files(split) for split in ("test", "train")
    ]
    assert asked["reference"].folder == dataset.folder
    assert check.passed is (num_predicted == 6)
