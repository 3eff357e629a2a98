"""Samples of one class count by their cross-sections, from the training mixture to the rates."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from event_rows import event_row, events_table, lepton
from spark_in_process import InProcessSpark

from features.dataset import FeatureDataset
from features.errors import FeatureError
from features.kernel_pass import EventsFile
from features.matrices import hlf_array
from features.normalisation import GeneratedSample, physics_factors
from features.schema import SPLITS
from features.settings import FeatureSettings
from features.spark_job import make_features
from models.evaluation.bootstrap import Estimate, Replicas
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.measurements import measure
from models.evaluation.rates import Rates
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import NO_LABELS

CLASSES = ["QCD", "ttbar"]
#: Two slices of one class with equal numbers of events, a tenth of them selected, and generator
#: weights of 3 and 7.
SLICES = {
    "low": GeneratedSample(0, 1e6, 3000, 9000.0),
    "high": GeneratedSample(0, 1.0, 3000, 21000.0),
    "ttbar": GeneratedSample(1, 800.0, 300, 300.0),
}
WEIGHTS = {"low": 3.0, "high": 7.0, "ttbar": 1.0}


def write_sample(folder: Path, sample: str) -> EventsFile:
    """Write 300 events of a sample, with its weight."""
    name = str(uuid.uuid5(uuid.NAMESPACE_OID, sample))
    label = SLICES[sample].label
    weight = WEIGHTS[sample]
    event = event_row(file_uuid=name, sample=sample, label=label, weight=weight)
    rows = []
    for entry in range(300):
        electron = lepton(40.0 + entry % 7, 0, 0)
        rows.append(event | {"entry": entry, "electrons": [electron]})
    path = folder / f"{name}.parquet"
    pq.write_table(events_table(rows), path)
    return EventsFile(path.name, sample, "", str(path))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    folder = tmp_path_factory.mktemp("slices")
    (folder / "out").mkdir()
    (folder / "kernels").mkdir()
    spark: Any = InProcessSpark()
    events_files = [write_sample(folder, sample) for sample in SLICES]
    settings = FeatureSettings(feed_workers=1, integrated_luminosity=2.0)
    result = make_features(
        spark,
        events_files,
        SLICES,
        settings,
        CLASSES,
        folder / "out",
        kernels=folder / "kernels",
        event_counter=spark.accumulator(0),
        num_tasks=int,
    )
    return result.dataset


def read_splits(dataset: FeatureDataset, *splits: str) -> pa.Table:
    tables = []
    for split in splits:
        tables += [pq.read_table(file) for file in dataset.files(split)]
    return pa.concat_tables(tables)


def test_a_sample_adds_up_to_luminosity_times_cross_section_times_efficiency(
    dataset: FeatureDataset,
) -> None:
    rows = read_splits(dataset, *SPLITS).to_pandas()

    sums = rows.groupby("sample")["weight"].sum().to_dict()

    # A tenth of the events of the slices is selected, and all of ttbar; the luminosity is 2 / pb.
    expected_sums = {"low": 2 * 1e6 / 10, "high": 2 * 1.0 / 10, "ttbar": 2 * 800.0}
    assert sums == pytest.approx(expected_sums, rel=1e-12)


def test_the_training_mixture_is_that_of_the_cross_sections(dataset: FeatureDataset) -> None:
    train = read_splits(dataset, "train").to_pandas()

    class_weights = np.array(dataset.class_weights)
    train["weight"] *= class_weights[train["label"]]
    sums = train.groupby("sample")["weight"].sum()
    shares = sums / sums.sum()

    assert shares["high"] / shares["low"] == pytest.approx(1e-6, rel=0.5)
    assert shares["low"] + shares["high"] == pytest.approx(0.5)


def test_the_dataset_records_its_normalisation(dataset: FeatureDataset) -> None:
    expected_factor = pytest.approx(2e6 / 9000)
    expected = SLICES["low"]._asdict() | {"factor": expected_factor}
    assert dataset.normalisation["low"] == expected


def test_efficiency_area_and_rate_follow_the_cross_sections(dataset: FeatureDataset) -> None:
    # The classifier keeps the rare slice and rejects the frequent one: an efficiency of 1e-6, by
    # counts 0.5.
    score_by_sample = {"low": 0.1, "high": 0.9, "ttbar": 0.8}
    table = read_splits(dataset, "test")
    scores = [score_by_sample[sample] for sample in table["sample"].to_pylist()]
    probabilities = [[1 - score, score] for score in scores]
    hlf = list(hlf_array(table))
    table = table.append_column("probability", pa.array(probabilities))
    table = table.append_column("hlf", pa.array(hlf))
    events = ScoredEvents.from_predictions(table)
    expected_events = {
        "low": Estimate(5000.0, 0.0),
        "high": Estimate(0.25, 0.0),
        "ttbar": Estimate(3.0, 0.0),
    }
    rates = Rates(expected_events, {"low": 0, "high": 0, "ttbar": 1})
    task = EvaluationTask(CLASSES, [1], [0.9], rates, NO_LABELS, seed=1)
    replicas = Replicas(events.labels, events.samples, events.weights, seed=1, num=100)

    numbers = measure(events, None, replicas, task).numbers

    (working_point,) = numbers["working_points"]
    assert working_point["backgrounds"]["QCD"]["value"] == pytest.approx(1e-6, rel=0.5)
    assert working_point["rates"]["QCD"]["value"] == pytest.approx(0.25)
    assert working_point["rates"]["ttbar"]["value"] == pytest.approx(3.0)
    assert numbers["auc"]["ttbar"]["value"] == pytest.approx(1.0, abs=1e-5)


def test_without_cross_sections_samples_of_a_class_count_by_their_events() -> None:
    # One sample without a cross-section is enough, and another class has its own.
    low = SLICES["low"]._replace(cross_section_pb=None)
    ttbar = SLICES["ttbar"]._replace(stated_sum=400.0)
    samples = {"low": low, "high": SLICES["high"], "ttbar": ttbar}

    factors = physics_factors(samples, 2.0)

    # Over the mean weights of 3 and 7, and a luminosity of 2 / pb times 800 pb.
    expected_factors = {"low": 1 / 3, "high": 1 / 7, "ttbar": 1600 / 400}
    assert factors == pytest.approx(expected_factors)


def test_stated_sums_do_not_count_where_samples_count_by_their_events() -> None:
    """Of 1000 generated events the file holds 100; the classes of one sample share a sum."""
    samples = {
        "whole": GeneratedSample(0, None, 100, 100.0),
        "skim": GeneratedSample(0, 5.0, 100, 100.0, 1000.0),
        "classes.0": GeneratedSample(0, 5.0, 30, 60.0, 80.0),
        "classes.1": GeneratedSample(1, 5.0, 10, 20.0, 80.0),
    }

    factors = physics_factors(samples, 2.0)

    # The first three are of one class, with mean weights of 1, 1 and 2.
    expected_factors = {"whole": 1.0, "skim": 1.0, "classes.0": 0.5, "classes.1": 5.0 * 2.0 / 80}
    assert factors == pytest.approx(expected_factors)


@pytest.mark.parametrize(
    "sums", [(0.0, None), (-1.0, 9000.0), (float("nan"), None), (9000.0, 0.0), (9000.0, -1.0)]
)
def test_a_sample_whose_weights_add_up_to_nothing_is_named(
    sums: tuple[float, float | None],
) -> None:
    sample = SLICES["low"]._replace(sum_of_weights=sums[0], stated_sum=sums[1])
    with pytest.raises(FeatureError, match=r"sample 'low' add up to .* over its 3000 events"):
        physics_factors({"low": sample}, 1.0)


#: Counters of a sample of two classes; its copies have weights, and one class has negative ones.
INGESTED = {
    "samples": {
        "low.0": {"entries": 100, "rejected_copy": 10, "events_of_negative_weight": 0},
        "low.1": {"entries": 40, "rejected_copy": 0, "events_of_negative_weight": 3},
    },
    "weights": {
        "low.0": {"entries": [250.0, 900.0], "rejected_copy": [50.0, 500.0]},
        "low.1": {"entries": [80.0, 700.0], "rejected_copy": [0.0, 0.0]},
    },
    "generated": {"low": {"Runs.sumw": 400.0}},
}


def generated(
    *classes: int, cross_section: float | None = 3.0, stated: float | str | None = None
) -> dict[str, GeneratedSample]:
    labels = {f"low.{label}": label for label in classes}
    return GeneratedSample.from_counters(
        "low", labels, INGESTED, cross_section_pb=cross_section, sum_of_weights=stated
    )


def test_copies_count_neither_as_generated_events_nor_with_their_weights() -> None:
    assert generated(0) == {"low.0": GeneratedSample(0, 3.0, 90, 200.0, None)}


def test_weights_that_cancel_but_for_rounding_normalise_nothing() -> None:
    rounding = 0.1 + 0.2 - 0.3
    weights = {"low.0": {"entries": [rounding, 0.14], "rejected_copy": [0.0, 0.0]}}

    samples = GeneratedSample.from_counters(
        "low",
        {"low.0": 0},
        {**INGESTED, "weights": weights},
        cross_section_pb=3.0,
        sum_of_weights=None,
    )

    with pytest.raises(FeatureError, match=r"sample 'low\.0' add up to 0 over its 90 events"):
        physics_factors(samples, 1.0)


@pytest.mark.parametrize(
    ("cross_section", "stated", "expected"),
    [
        # The cross-section is that of both classes together, so that both count by the sum of both.
        (3.0, None, 280.0),
        (3.0, 350.0, 350.0),
        (3.0, "Runs.sumw", 400.0),
        (None, None, None),
    ],
)
def test_the_classes_of_a_sample_share_its_sum_of_weights(
    cross_section: float | None, stated: float | str | None, expected: float | None
) -> None:
    samples = generated(0, 1, cross_section=cross_section, stated=stated)

    expected_qcd = GeneratedSample(0, cross_section, 90, 200.0, expected)
    expected_ttbar = GeneratedSample(1, cross_section, 40, 80.0, expected)
    assert samples == {"low.0": expected_qcd, "low.1": expected_ttbar}


@pytest.mark.parametrize(
    ("classes", "stated", "is_refused"),
    [
        ((0,), 199.0, True),
        # The same sum, added up in another order.
        ((0,), 200.0 * (1 - 1e-8), False),
        ((0,), 201.0, False),
        # Events of negative weight may be among those that a skim dropped. The squares of the
        # weights add up to 1100 and 700: five standard deviations are 166 and 132.
        ((0, 1), 279.0, False),
        ((0, 1), 115.0, False),
        ((0, 1), 113.0, True),
        ((1,), 79.0, False),
    ],
)
def test_a_stated_sum_below_that_of_the_events_is_refused_unless_negative_weights_explain_it(
    classes: tuple[int, ...], stated: float, is_refused: bool
) -> None:
    if is_refused:
        message = r"'low': the weights of the events read add up to 2[08]0, more"
        with pytest.raises(FeatureError, match=message):
            generated(*classes, stated=stated)
    else:
        samples = generated(*classes, stated=stated)
        first_sample = samples[f"low.{classes[0]}"]
        assert first_sample.stated_sum == stated
