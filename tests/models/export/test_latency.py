"""How long exported networks take: what is measured, not how fast it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import random_columns, small_network, small_spec

from features.columns import hlf_names
from models.export.latency import measure_latency, measure_throughput
from models.export.onnx_classifier import Feeds, OnnxClassifier
from models.export.onnx_export import export_onnx
from models.networks.registry import ModelName

Columns = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def columns() -> Columns:
    return random_columns([4, 0, 9])


def exported(name: ModelName, folder: Path) -> OnnxClassifier:
    export_onnx(small_network(name), small_spec(name), folder / "model.onnx")
    return OnnxClassifier.load(folder / "model.onnx")


def note_calls(network: OnnxClassifier, monkeypatch: pytest.MonkeyPatch) -> list[Feeds]:
    """What the network is run on from now on."""
    noted: list[Feeds] = []
    run = network.run

    def noting(feeds: Feeds) -> np.ndarray[Any, Any]:
        noted.append(feeds)
        return run(feeds)

    monkeypatch.setattr(network, "run", noting)
    return noted


def test_times_are_microseconds_of_the_calls(
    tmp_path: Path, columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that says how long each call took: 1 to 100 us."""
    times = []
    for call in range(1, 101):
        start = 10**9 * call
        times += [start, start + 1000 * call]
    ticks = iter(times)
    monkeypatch.setattr("models.export.latency.perf_counter_ns", lambda: next(ticks))
    network = exported("hlf", tmp_path)

    quantiles = measure_latency(network, columns, calls=100, warm_up=3)

    median, percentile_90, percentile_99, percentile_999, *_ = quantiles
    microseconds = np.arange(1, 101)
    assert median == pytest.approx(np.percentile(microseconds, 50))
    assert percentile_90 == pytest.approx(np.percentile(microseconds, 90))
    # One call of 100 is slower than 99 %, and none than 99.9 %: these are no percentiles but the
    # slowest call.
    assert percentile_99 is None
    assert percentile_999 is None


@pytest.mark.parametrize(("calls", "measured"), [(99, 1), (1000, 3), (9999, 3), (10_000, 4)])
def test_a_percentile_needs_ten_slower_calls(calls: int, measured: int) -> None:
    class Instant:
        inputs = ("hlf",)

        def prepare(self, columns: Columns) -> Columns:
            return columns

        def run(self, feeds: Columns) -> None:
            pass

    first = {"hlf": np.zeros((1, len(hlf_names())), np.float32)}

    quantiles = measure_latency(Instant(), first, calls=calls, warm_up=0)  # type: ignore[arg-type]

    percentiles = quantiles[:4]
    assert sum(percentile is not None for percentile in percentiles) == measured


def test_single_events_come_in_turn_each_with_its_own_particles(
    tmp_path: Path, columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = exported("inclusive", tmp_path)
    noted = note_calls(network, monkeypatch)

    measure_latency(network, columns, calls=4, warm_up=2)

    assert [len(feeds["hlf"]) for feeds in noted] == [1] * 6
    assert [feeds["particles"].shape[1] for feeds in noted] == [4, 1, 4, 1, 9, 4]


def test_throughput_is_events_per_second_of_full_batches(
    tmp_path: Path, columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that moves on by half a second a call."""
    network = exported("particles", tmp_path)
    noted = note_calls(network, monkeypatch)
    ticks = iter(range(0, 10**10, 5 * 10**8))
    monkeypatch.setattr("models.export.latency.perf_counter_ns", lambda: next(ticks))

    throughput = measure_throughput(network, columns, batch_size=8, seconds=1.5)

    assert throughput == pytest.approx(16)
    assert [feeds["particles"].shape for feeds in noted] == [(8, 9, 19)] * 4
    assert noted[0]["num_particles"].tolist() == [4, 0, 9, 4, 0, 9, 4, 0]
