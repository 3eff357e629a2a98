"""Histograms as others read them."""

from __future__ import annotations

import json
from pathlib import Path

import hist
import numpy as np
import uhi.io.json

from features.columns import NUM_PARTICLE_FEATURES, hlf_names
from features.distributions import add, fill, save


def test_axes_have_names_and_labels_also_after_sums_and_in_the_file(tmp_path: Path) -> None:
    events = (
        np.zeros((2, len(hlf_names())), np.float32),
        np.zeros((7, NUM_PARTICLE_FEATURES), np.float32),
        np.array([3, 4], np.int32),
        np.array([0, 1]),
        np.ones(2, np.float32),
    )
    total = add([fill(*events, ["QCD", "ttbar"]), fill(*events, ["QCD", "ttbar"])])
    save(total, tmp_path / "histograms.json")
    found = json.loads((tmp_path / "histograms.json").read_text(), object_hook=uhi.io.json.object_hook)
    mt = hist.Hist(found["hlf.mt"])
    assert mt.axes.name == ("mt", "class")
    assert mt.axes.label == ("mt [GeV]", "QCD, ttbar")
    assert hist.Hist(found["particles.eta"]).axes.label[0] == "eta"
    assert mt[{"class": 1}].sum(flow=True).value == 2
