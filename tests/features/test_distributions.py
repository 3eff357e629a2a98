"""Histograms as others read them."""

from __future__ import annotations

import json
from pathlib import Path

import hist
import numpy as np
import pytest
import uhi.io.json

from features.columns import NUM_PARTICLE_FEATURES, hlf_names
from features.distributions import add_histograms, fill_histograms, save_histograms


def test_histograms_sum_weights_of_events_and_of_particles_of_the_first_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("features.distributions.EVENTS_FOR_PARTICLES", 2)
    path = tmp_path / "histograms.json"
    num_events = 3
    num_particles = np.array([3, 4, 5], np.int32)
    # Only the particles of the first two events.
    num_rows = num_particles[:2].sum()
    hlf = np.zeros((num_events, len(hlf_names())), np.float32)
    particles = np.zeros((num_rows, NUM_PARTICLE_FEATURES), np.float32)
    row_group = fill_histograms(
        hlf=hlf,
        particles=particles,
        num_particles=num_particles,
        labels=np.array([0, 1, 1]),
        weights=np.array([2.0, 3.0, 7.0], np.float32),
        classes=["QCD", "ttbar"],
    )

    save_histograms(add_histograms([row_group] * 3), path)

    stored = json.loads(path.read_text(), object_hook=uhi.io.json.object_hook)
    mt = hist.Hist(stored["hlf.mt"])
    eta = hist.Hist(stored["particles.eta"])
    assert mt.axes.name == ("mt", "class")
    assert mt.axes.label == ("mt [GeV]", "QCD, ttbar")
    assert eta.axes.label[0] == "eta"
    # Three row groups; every event counts in mt, and each of its particles in eta.
    assert sums_of_class(mt, 0) == (3 * 2, 3 * 2**2)
    assert sums_of_class(mt, 1) == (3 * (3 + 7), 3 * (3**2 + 7**2))
    assert sums_of_class(eta, 0) == (3 * 3 * 2, 3 * 3 * 2**2)
    assert sums_of_class(eta, 1) == (3 * 4 * 3, 3 * 4 * 3**2)


def sums_of_class(histogram: hist.Hist, label: int) -> tuple[float, float]:
    """The sum of the weights and of the squared weights of a class."""
    total = histogram[{"class": label}].sum(flow=True)
    return total.value, total.variance
