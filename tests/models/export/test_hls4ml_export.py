"""Firmware of the perceptron by hls4ml, simulated bit by bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from networks import NAMES, SCALERS, small_network

from features.columns import hlf_names
from models.export.hls4ml_export import export_firmware, is_convertible
from models.networks.classifier import Classifier
from models.networks.hlf import HlfClassifier
from models.networks.lepton_frame import LeptonFrame

Events = np.ndarray


@pytest.fixture
def events() -> Events:
    rng = np.random.default_rng(1)
    mean, std, *_ = SCALERS["hlf"]
    hlf = rng.normal(mean, std, (200, len(hlf_names())))
    return hlf.astype(np.float32)


@pytest.fixture
def model() -> Classifier:
    """With larger weights, so that it is surer of its classes than a fresh one."""
    network = small_network("hlf", dtype=torch.float32)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3.0)
    return network


def test_only_perceptrons_are_converted() -> None:
    convertible = [name for name in NAMES if is_convertible(small_network(name))]

    assert convertible == ["hlf"]


def scaling_of(folder: Path) -> Callable[[Events], Events]:
    """The exported scaling."""
    session = onnxruntime.InferenceSession(
        folder / "scaling.onnx", providers=["CPUExecutionProvider"]
    )

    def scale(events: Events) -> Events:
        (scaled,) = session.run(["scaled"], {"hlf": events})
        return np.asarray(scaled)

    return scale


def test_the_scaling_beside_the_firmware_makes_what_it_takes(
    tmp_path: Path, model: Classifier, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def simulate(
        layers: object, ranges: object, scaled: Events, folder: Path, width: int
    ) -> Events:
        seen.append((scaled, folder, width))
        return np.zeros((len(scaled), 3), np.float32)

    monkeypatch.setattr("models.export.hls4ml_export._simulate", simulate)
    monkeypatch.setattr(
        "models.export.hls4ml_export._estimate",
        lambda *_: {"latency_ns": 50.0, "lookup_tables": 1000},
    )
    # The events that set the ranges are no part of the comparison.
    calibration_events = 2 * events[:50]

    export_firmware(model, calibration_events, events, tmp_path, bits=[8])

    ((scaled, folder, width),) = seen
    assert folder == tmp_path / "8-bits"
    assert width == 8
    scale = scaling_of(tmp_path)
    np.testing.assert_allclose(scale(events), scaled, rtol=1e-5, atol=1e-6)
    assert np.abs(scaled).max() < 10
    # The scaling alone would cut off an infinite number.
    events[:2, 3] = np.nan, np.inf
    scaled_again = scale(events)
    assert np.isnan(scaled_again[:2]).all()
    assert np.isfinite(scaled_again[2:]).all()


def test_a_frame_before_the_scaling_was_left_out(
    tmp_path: Path, model: Classifier, events: Events
) -> None:
    frame = LeptonFrame("hlf")
    form = model.standard_form()
    assert form is not None
    framed_form = form._replace(frame=frame)
    framed = type("Framed", (HlfClassifier,), {"standard_form": lambda _: framed_form})
    model.__class__ = framed

    export_firmware(model, events, events, tmp_path, bits=[])

    scale = scaling_of(tmp_path)
    events_in_frame = frame(torch.from_numpy(events))
    expected = model.scaling(events_in_frame).numpy()
    np.testing.assert_allclose(scale(events), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_more_bits_come_closer_to_the_network_and_none_overflows(
    tmp_path: Path, model: Classifier, events: Events
) -> None:
    for package in ("hls4ml", "da4ml"):
        pytest.importorskip(package, reason="needs the extra: `pip install -e '.[hls]'`")
    if shutil.which("g++") is None:
        pytest.skip("needs g++ for the simulation")
    # Events beyond the ranges of the calibration saturate instead of wrapping around.
    with_extremes = np.concatenate([events, events[:5] * 20])

    narrow, wide = export_firmware(model, events, with_extremes, tmp_path, bits=[10, 26])

    assert narrow["bits"] == 10
    assert wide["bits"] == 26
    assert wide["largest_difference"] < 1e-2
    assert narrow["largest_difference"] > 3 * wide["largest_difference"]
    assert wide["same_class"] >= 0.99
    # Wider numbers take more additions; a clock has 5 ns.
    assert 5 < narrow["latency_ns"] <= wide["latency_ns"] < 500
    assert narrow["latency_ns"] % 5 == 0
    assert wide["latency_ns"] % 5 == 0
    assert 2 * narrow["lookup_tables"] < wide["lookup_tables"]
    assert (tmp_path / "26-bits" / "firmware" / "network.cpp").exists()
    assert not list(tmp_path.rglob("*.so"))
