"""Bundled QCD in slices of pT gives the numbers of the whole sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from analyses import Analysis
from command_line import SAMPLES
from sliced_qcd import THINNED, WHOLE, write_slices
from stages_in_process import without_spark

from features.columns import hlf_names
from features.dataset import FeatureDataset
from features.matrices import hlf_array
from features.schema import SPLITS
from models.evaluation.bootstrap import Replicas
from models.evaluation.measurements import measure
from models.evaluation.rates import Rates
from models.evaluation.scored_events import ScoredEvents
from pipeline.stages.evaluation_task import SelectionRates, make_task

pytestmark = pytest.mark.slow

#: Invented cross-sections of the other samples [pb].
OTHER_CROSS_SECTIONS = {"ttbar": 230.0, "wjets": 18_000.0}
CLASSES = ["QCD", "ttbar", "W+jets"]
QCD = 0


class RunNumbers(NamedTuple):
    """Results of a run over one set of QCD samples."""

    cutflow: list[dict[str, Any]]
    """The column of QCD in each step."""
    events: pa.Table
    """All selected events."""
    rates: Rates
    working_points: list[dict[str, Any]]
    """For a score that rises with HT."""


def run_numbers(folder: Path, qcd_samples: list[dict[str, Any]]) -> RunNumbers:
    """Run ingest and features over QCD samples and the other bundled samples, and measure."""
    samples = list(qcd_samples)
    for label, (name, cross_section) in enumerate(OTHER_CROSS_SECTIONS.items(), start=1):
        files = [str(SAMPLES / f"{name}_*_0.root")]
        sample = {"name": name, "label": label, "files": files}
        samples.append({**sample, "cross_section_pb": cross_section})
    analysis = Analysis(folder)
    with pytest.MonkeyPatch.context() as patch:
        without_spark(patch, folder)
        analysis.run(samples=samples, evaluate={"reference": False, "working_points": [0.7, 0.8]})
    config = analysis.runner().run_folder.config
    features_folder = analysis.folder_of("features")
    dataset = FeatureDataset.load(features_folder)
    tables = [pq.read_table(file) for split in SPLITS for file in dataset.files(split)]
    events = pa.concat_tables(tables)
    rates = analysis.rates()

    scored = scored_by_ht(events)
    replicas = Replicas(scored.labels, scored.samples, scored.weights, seed=1, num=100)
    task = make_task(config, config.classes, SelectionRates(rates), config.features, [])
    measured = measure(scored, None, replicas, task)
    steps = json.loads((features_folder / "cutflow.json").read_text())["classes"]
    cutflow = [step["columns"]["QCD"] for step in steps]
    return RunNumbers(cutflow, events, rates, measured.numbers["working_points"])


def scored_by_ht(events: pa.Table) -> ScoredEvents:
    """Events with a probability of ttbar that rises with HT."""
    hlf = hlf_array(events)
    ht = hlf[:, hlf_names().index("ht")].astype(np.float64)
    top = (ht + 1) / (ht + 200)
    background = (1 - top) / 2
    probability = np.stack([background, top, background], axis=1)
    events = events.append_column("probability", pa.array(list(probability)))
    events = events.append_column("hlf", pa.array(list(hlf)))
    return ScoredEvents.from_predictions(events)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> RunNumbers:
    """The numbers of the sample that was never cut."""
    files = [str(SAMPLES / "qcd_*.root")]
    sample = {"name": "qcd", "label": QCD, "files": files, "cross_section_pb": WHOLE}
    return run_numbers(tmp_path_factory.mktemp("complete"), [sample])


def numbers_of_slices(folder: Path, keep: tuple[int, ...]) -> RunNumbers:
    """The numbers of slices that hold one of `keep` of their events."""
    return run_numbers(folder, write_slices(folder, sorted(SAMPLES.glob("qcd_*.root")), keep))


def weight_sums(events: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the physics weights of the classes, and their errors."""
    labels, weights = events["label"].to_numpy(), events["weight"].to_numpy()
    sums = np.bincount(labels, weights=weights)
    variances = np.bincount(labels, weights=weights**2)
    return sums, np.sqrt(variances)


def values(estimates: dict[str, dict[str, float]]) -> dict[str, float]:
    return {name: estimate["value"] for name, estimate in estimates.items()}


def test_slices_with_all_their_events_give_exactly_the_numbers_of_the_whole(
    tmp_path: Path, complete: RunNumbers
) -> None:
    sliced = numbers_of_slices(tmp_path, (1, 1, 1))

    samples = set(sliced.events["sample"].to_pylist())
    assert len(samples) == len(THINNED) + len(OTHER_CROSS_SECTIONS)
    for step, expected in zip(sliced.cutflow, complete.cutflow, strict=True):
        assert step["events"] == expected["events"]
        assert step["weight"] == pytest.approx(expected["weight"])
        assert step["weight2"] == pytest.approx(expected["weight2"])
    np.testing.assert_allclose(weight_sums(sliced.events), weight_sums(complete.events), rtol=1e-6)
    assert sliced.rates.of_classes(CLASSES) == pytest.approx(complete.rates.of_classes(CLASSES))
    for point, expected in zip(sliced.working_points, complete.working_points, strict=True):
        for key in ("rates", "backgrounds"):
            assert values(point[key]) == pytest.approx(values(expected[key]))
        for key in ("total_rate", "purity"):
            assert point[key]["value"] == pytest.approx(expected[key]["value"])


def test_slices_with_fewer_events_give_the_numbers_of_the_whole_within_errors(
    tmp_path: Path, complete: RunNumbers
) -> None:
    thinned = numbers_of_slices(tmp_path, THINNED)

    # Before any cut the class has the cross-section of the whole, whatever share of its events is
    # read.
    assert thinned.cutflow[0]["weight"] == pytest.approx(WHOLE)
    assert thinned.cutflow[0]["events"] < complete.cutflow[0]["events"] / 2
    for step, expected in zip(thinned.cutflow[1:], complete.cutflow[1:], strict=True):
        assert abs(step["weight"] - expected["weight"]) < 3 * np.sqrt(step["weight2"])
    sums, errors = weight_sums(thinned.events)
    expected_sums, _ = weight_sums(complete.events)
    assert abs(sums[QCD] - expected_sums[QCD]) < 3 * errors[QCD]
    expected_rate = complete.rates.of_class(QCD)
    tolerance = 3 * errors[QCD] / sums[QCD]
    assert thinned.rates.of_class(QCD) == pytest.approx(expected_rate, rel=tolerance)
    for point, expected in zip(thinned.working_points, complete.working_points, strict=True):
        for key in ("rates", "backgrounds"):
            estimate = point[key]["QCD"]
            assert estimate["low"] < expected[key]["QCD"]["value"] < estimate["high"]
        expected_ttbar = expected["rates"]["ttbar"]["value"]
        assert point["rates"]["ttbar"]["value"] == pytest.approx(expected_ttbar)
