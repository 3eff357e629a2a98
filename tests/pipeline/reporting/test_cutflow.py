"""The cutflow: sums that add up, efficiencies against numbers found by hand, weights of all sizes and signs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.kernels import OUTCOMES
from pipeline.reporting.cutflow import (
    Yield,
    applied_cuts,
    as_json,
    cutflow,
    efficiency,
    selection,
    uncertain_mixtures,
)
from pipeline.terminal.tables import cutflow_table

CONFIG: dict[str, Any] = {
    "samples": [
        {"name": name, "label": label, "cross_section_pb": None}
        for name, label in (("a", 0), ("b", 0), ("c", 1))
    ],
    "classes": ["QCD", "ttbar"],
    "ingest": {"min_lepton_pt": 23.0},
    "features": {"max_lepton_isolation": 0.45},
}


def counters(weights: dict[str, list[float]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Counters of ingest and features of three equal samples, from the weights of the events by outcome."""

    def summed(*steps: str) -> tuple[int, list[float]]:
        selected = [weight for step in steps for weight in weights.get(step, [])]
        return len(selected), [math.fsum(selected), math.fsum(weight**2 for weight in selected)]

    late = OUTCOMES
    early = ("rejected_copy", "rejected_nonfinite", "rejected_no_lepton")
    created = {step: summed(step) for step in (*early, *late)}
    created |= {"entries": summed(*early, *late), "events": summed(*late)}
    return tuple(  # type: ignore[return-value]
        {
            "samples": {name: {step: created[step][0] for step in steps} for name in "abc"},
            "weights": {name: {step: created[step][1] for step in steps} for name in "abc"},
            "normalisation": {name: {"factor": 1.0} for name in "abc"},
        }
        for steps in (("entries", *early, "events"), ("events", *late))
    )


def test_every_selection_was_called_one_isolated_electron_or_muon() -> None:
    cuts: dict[str, Any] = {
        "lepton_flavours": ["electron"],
        "max_leptons": 2,
        "min_jets": 3,
        "min_jet_pt": 40,
    }
    assert selection({**CONFIG, "features": cuts}) == (
        "an e or mu with pT > 23 GeV, e with pT > 23 GeV, with isolation < 0.45, 1 to 2 of these leptons, 3 or more "
        "jets with pT > 40 GeV, |eta| < 2.6"
    )
    # Files without particles have no isolation.
    lacking = applied_cuts(cuts, [{"missing_optional": ["tracks.pt"]}])
    assert "isolation" not in selection({**CONFIG, "features": lacking})
    assert applied_cuts(cuts, [{"missing_optional": ["weight"]}]) == cuts
    ingested, selected = counters({"rejected_no_lepton": [1.0], "selected": [2.0, -1.0]})
    steps = cutflow(ingested, selected, {**CONFIG, "features": lacking})
    assert not any("isolation" in step.name for step in steps)
    assert [step.yields["a"].events for step in steps][-1] == 2


def test_classes_add_up_their_samples() -> None:
    ingested, selected = counters({"rejected_no_lepton": [1.0], "selected": [2.0, -1.0]})
    steps = cutflow(ingested, selected, CONFIG, by_class=True)
    assert [step.yields["QCD"].events for step in steps] == [6, 6, 4, 4, 4]
    assert [step.yields["ttbar"].weight for step in steps] == [2.0, 2.0, 1.0, 1.0, 1.0]


def test_samples_of_a_class_add_up_in_physics_weights() -> None:
    ingested, selected = counters({"rejected_no_lepton": [1.0] * 3, "selected": [1.0]})
    selected["normalisation"] = {"a": {"factor": 1e6}, "b": {"factor": 1.0}, "c": {"factor": 1.0}}
    # Everything of b passes, a quarter of a: the class' efficiency is that of a.
    for step in ("rejected_no_lepton", "entries"):
        ingested["weights"]["b"][step] = [0.0, 0.0] if step == "rejected_no_lepton" else [1.0, 1.0]
    last = cutflow(ingested, selected, CONFIG, by_class=True)[-1]
    assert last.yields["QCD"] == Yield(2, 1e6 + 1, 1e12 + 1)
    share = last.weighted["QCD"]
    assert share is not None
    assert share.value == pytest.approx(0.25, rel=1e-5)


def test_classes_of_several_samples_without_cross_sections_are_named() -> None:
    expected = {
        **CONFIG,
        "samples": [{**sample, "cross_section_pb": 2.0} for sample in CONFIG["samples"]],
    }
    assert uncertain_mixtures(expected) == []
    assert uncertain_mixtures(CONFIG) == [
        "Class QCD: a, b do not all have a cross_section_pb and count by their numbers of events."
    ]


def test_an_efficiency_of_weights_that_add_up_to_nothing_is_not_measurable() -> None:
    steps = cutflow(*counters({"rejected_no_lepton": [1.0], "selected": [-1.0]}), CONFIG)
    assert steps[-1].weighted["a"] is None
    assert "not measurable" in str(cutflow_table(steps))
    assert as_json(steps)[-1]["columns"]["a"]["weighted_efficiency"] is None


@given(
    st.lists(st.floats(1e-9, 1e9), max_size=5),
    st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=5),
)
def test_weights_of_very_different_sizes_keep_their_figures(
    rejected: list[float], selected: list[float]
) -> None:
    # Differences of sums lost them, and the root of a negative variance ended the stage after all its work.
    steps = cutflow(
        *counters({"rejected_no_isolated_lepton": rejected, "selected": selected}), CONFIG
    )
    last = steps[-1].yields["a"]
    assert last.weight == pytest.approx(math.fsum(selected), rel=1e-12)
    assert last.weight2 == pytest.approx(math.fsum(weight**2 for weight in selected), rel=1e-12)
    share = steps[-1].weighted["a"]
    assert share is not None
    assert 0 <= share.low <= share.high <= 1


def test_intervals_of_weighted_samples_cover_what_they_promise() -> None:
    rng = np.random.default_rng(3)
    covered = []
    for _ in range(3000):
        passed = rng.random(300) < 0.3
        # Weights that differ between those that pass and those that fail, some of them negative.
        weight = rng.choice([0.5, 2.0, -0.5], 300) * np.where(passed, 3.0, 1.0)
        share = efficiency(
            Yield(int(passed.sum()), weight[passed].sum(), np.square(weight[passed]).sum()),
            Yield(300, weight.sum(), np.square(weight).sum()),
        )
        assert share is not None
        covered.append(share.low <= 0.9 / 1.6 <= share.high)
    assert np.mean(covered) == pytest.approx(0.683, abs=0.02)


def test_every_cut_that_is_set_is_a_line_and_no_other() -> None:
    features = {
        "lepton_flavours": ["muon"],
        "max_lepton_abs_eta": 2.4,
        "max_leptons": 1,
        "min_jets": 4,
        "min_bjets": 1,
        "convention": "sparkdltrigger",
        "ordering": "file",
    }
    weights = {outcome: [1.0] * (2**position) for position, outcome in enumerate(OUTCOMES)}
    steps = cutflow(*counters(weights), CONFIG | {"features": features})
    assert {step.name: step.yields["a"].events for step in steps} == {
        "in the files": 255,
        "all kinematics finite": 255,
        "an e or mu with pT > 23 GeV": 255,
        "a track, a photon and a neutral hadron": 253,
        "... mu with pT > 23 GeV, |eta| < 2.4": 249,
        "... with isolation < 0.45": 241,
        "1 to 1 of these leptons": 225,
        "4 or more jets with pT > 30 GeV, |eta| < 2.6": 193,
        "1 or more of them b-jets": 129,
        "all features finite: selected": 1,
    }
    assert [step.name for step in cutflow(*counters(weights), CONFIG)][3:] == [
        "... with isolation < 0.45",
        "all features finite: selected",
    ]
