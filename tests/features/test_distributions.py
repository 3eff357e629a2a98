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
    row_group = fill_histograms(
        hlf=np.zeros((3, len(hlf_names())), np.float32),
        particles=np.zeros((3 + 4, NUM_PARTICLE_FEATURES), np.float32),
        num_particles=np.array([3, 4, 5], np.int32),
        labels=np.array([0, 1, 1]),
        weights=np.array([2.0, 3.0, 7.0], np.float32),
        classes=["QCD", "ttbar"],
    )

    save_histograms(add_histograms([row_group] * 3), path)

    stored = json.loads(path.read_text(), object_hook=uhi.io.json.object_hook)
    mt, eta = hist.Hist(stored["hlf.mt"]), hist.Hist(stored["particles.eta"])
    assert mt.axes.name == ("mt", "class")
    assert mt.axes.label == ("mt [GeV]", "QCD, ttbar")
    assert eta.axes.label[0] == "eta"
    # Sum of weights and of squared weights of each class.
    for histogram, expected in (
        (mt, [(3 * 2, 3 * 4), (3 * (3 + 7), 3 * (9 + 49))]),
        (eta, [(3 * 3 * 2, 3 * 3 * 4), (3 * 4 * 3, 3 * 4 * 9)]),
    ):
        sums = [histogram[{"class": label}].sum(flow=True) for label in (0, 1)]
        assert [(bin_sum.value, bin_sum.variance) for bin_sum in sums] == expected
