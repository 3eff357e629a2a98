"""Bundled QCD in slices of pT with cross-sections of their own: the numbers of the sample that was
never cut."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import SAMPLES, small_config
from sliced_qcd import THINNED, WHOLE, write_slices
from stages_in_process import run_stages, without_spark

from features.columns import hlf_names
from features.dataset import FeatureDataset
from features.matrices import hlf_array
from features.schema import SPLITS
from models.evaluation.bootstrap import Replicas
from models.evaluation.measurements import measure
from models.evaluation.rates import Rates
from models.evaluation.scored_events import ScoredEvents
from pipeline.config import load_config
from pipeline.runs.store import StageStore
from pipeline.stages.evaluation_task import make_task, rates_of_run

pytestmark = pytest.mark.slow

#: Cross-sections of the other samples [pb], invented too.
OTHERS = {"ttbar": 230.0, "wjets": 18_000.0}
POINTS = [0.7, 0.8]
QCD = 0


class Made(NamedTuple):
    """What the stages say of one set of samples."""

    cutflow: list[dict[str, Any]]
    """Steps, with the class QCD."""
    events: pa.Table
    """All selected events."""
    rates: Rates
    points: list[dict[str, Any]]
    """Working points of a score that rises with HT."""


def made(folder: Path, qcd: list[dict[str, Any]]) -> Made:
    remaining = [
        {
            "name": name,
            "label": label,
            "files": [str(SAMPLES / f"{name}_*_0.root")],
            "cross_section_pb": OTHERS[name],
        }
        for label, name in enumerate(OTHERS, start=1)
    ]
    evaluate = {"reference": False, "working_points": POINTS}
    path = small_config(folder, folder, samples=[*qcd, *remaining], evaluate=evaluate)
    with pytest.MonkeyPatch.context() as patch:
        without_spark(patch, folder)
        run_stages(path, "ingest", "features")
    config = load_config(str(path))
    versions = {
        stage: StageStore(config.run_dir, stage).current() for stage in ("ingest", "features")
    }
    upstream = {stage: version for stage, version in versions.items() if version is not None}
    features = upstream["features"].folder
    dataset = FeatureDataset.load(features)
    events = pa.concat_tables(
        [pq.read_table(file) for split in SPLITS for file in dataset.files(split)]
    )
    rates = rates_of_run(config, upstream)
    assert rates is not None
    task = make_task(config, config.classes, rates, config.features, [])
    actual = measure(scored := scored_by_ht(events), None, replicas(scored), task)
    steps = json.loads((features / "cutflow.json").read_text())["classes"]
    return Made(
        [step["columns"]["QCD"] for step in steps], events, rates, actual.numbers["working_points"]
    )


def scored_by_ht(events: pa.Table) -> ScoredEvents:
    hlf = hlf_array(events)
    ht = hlf[:, hlf_names().index("ht")].astype(np.float64)
    top = (ht + 1) / (ht + 200)
    probability = np.stack([(1 - top) / 2, top, (1 - top) / 2], axis=1)
    columns = {"probability": pa.array(list(probability)), "hlf": pa.array(list(hlf))}
    for name, column in columns.items():
        events = events.append_column(name, column)
    return ScoredEvents.from_predictions(events)


def replicas(scored: ScoredEvents) -> Replicas:
    return Replicas(scored.labels, scored.samples, scored.weights, seed=1, num=100)


@pytest.fixture(scope="module")
def of(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Made]:
    """The sample as it is, in slices, and in slices of which the soft ones have too few events."""
    actual = {}
    for name, keep in {"whole": (), "sliced": (1, 1, 1), "thinned": THINNED}.items():
        folder = tmp_path_factory.mktemp(name)
        complete = {
            "name": "qcd",
            "label": QCD,
            "files": [str(SAMPLES / "qcd_*.root")],
            "cross_section_pb": WHOLE,
        }
        actual[name] = made(
            folder,
            write_slices(folder, sorted(SAMPLES.glob("qcd_*.root")), keep) if keep else [complete],
        )
    return actual


def weights_of(table: pa.Table) -> list[tuple[float, float]]:
    """Sum of the physics weights of each class, and its error."""
    labels, weights = table["label"].to_numpy(), table["weight"].to_numpy()
    sums, squares = (np.bincount(labels, weights=weights**power) for power in (1, 2))
    return list(zip(sums.tolist(), np.sqrt(squares).tolist(), strict=True))


def test_slices_with_all_their_events_give_exactly_the_numbers_of_the_whole(
    of: Mapping[str, Made],
) -> None:
    complete, sliced = of["whole"], of["sliced"]
    assert len(set(sliced.events["sample"].to_pylist())) == len(THINNED) + len(OTHERS)
    for step, expected in zip(sliced.cutflow, complete.cutflow, strict=True):
        assert step["events"] == expected["events"]
        assert (step["weight"], step["weight2"]) == pytest.approx(
            (expected["weight"], expected["weight2"])
        )
    assert np.array(weights_of(sliced.events)) == pytest.approx(
        np.array(weights_of(complete.events))
    )
    classes = ["QCD", "ttbar", "W+jets"]
    assert sliced.rates.of_classes(classes) == pytest.approx(complete.rates.of_classes(classes))
    for point, expected in zip(sliced.points, complete.points, strict=True):
        for key in ("rates", "backgrounds"):
            values = [
                {name: estimate["value"] for name, estimate in actual[key].items()}
                for actual in (point, expected)
            ]
            assert values[0] == pytest.approx(values[1])
        assert point["total_rate"]["value"] == pytest.approx(expected["total_rate"]["value"])
        assert point["purity"]["value"] == pytest.approx(expected["purity"]["value"])


def test_slices_whose_sizes_say_nothing_give_the_numbers_of_the_whole_within_errors(
    of: Mapping[str, Made],
) -> None:
    complete, thinned = of["whole"], of["thinned"]
    # Before any selection the class has the cross-section of the whole, whatever is left of its
    # events.
    assert thinned.cutflow[0]["weight"] == pytest.approx(WHOLE)
    assert thinned.cutflow[0]["events"] < complete.cutflow[0]["events"] / 2
    for step, expected in zip(thinned.cutflow[1:], complete.cutflow[1:], strict=True):
        assert abs(step["weight"] - expected["weight"]) < 3 * np.sqrt(step["weight2"])
    (sum_of_weights, error), (expected_sum, _) = (
        weights_of(sample.events)[QCD] for sample in (thinned, complete)
    )
    assert abs(sum_of_weights - expected_sum) < 3 * error
    assert thinned.rates.of_class(QCD) == pytest.approx(
        complete.rates.of_class(QCD), rel=3 * error / sum_of_weights
    )
    for point, expected in zip(thinned.points, complete.points, strict=True):
        for key in ("rates", "backgrounds"):
            actual, reference = point[key]["QCD"], expected[key]["QCD"]["value"]
            assert actual["low"] < reference < actual["high"]
        assert point["rates"]["ttbar"]["value"] == pytest.approx(
            expected["rates"]["ttbar"]["value"]
        )
