"""The rates of a run: cross-section times luminosity times efficiency, or why there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from two_samples import finished_stages, two_samples

from features.settings import FeatureSettings
from models.evaluation.rates import Rates
from pipeline.config import Config
from pipeline.runs.version import Version
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.evaluation_task import SelectionRates, make_task, rates_of_run, task_of_run


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
