"""The cutflow: its sums, efficiencies found by hand, weights of all sizes and signs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.kernels import OUTCOMES
from pipeline.reporting.cutflow import (
    Step,
    Yield,
    applied_cuts,
    as_json,
    cutflow,
    efficiency,
    selection,
    uncertain_mixtures,
)
from pipeline.runs.counters import FeaturesCounters, IngestCounters
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


INGEST_STEPS = ("rejected_copy", "rejected_nonfinite", "rejected_no_lepton")


def counters(weights: dict[str, list[float]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Counters of ingest and features of three equal samples, from event weights by outcome."""
    weights = {step: weights.get(step, []) for step in (*INGEST_STEPS, *OUTCOMES)}
    weights["events"] = [weight for step in OUTCOMES for weight in weights[step]]
    rejected_by_ingest = [weight for step in INGEST_STEPS for weight in weights[step]]
    weights["entries"] = [*rejected_by_ingest, *weights["events"]]

    def counters_of(*steps: str) -> dict[str, Any]:
        numbers = {step: len(weights[step]) for step in steps}
        sums = {
            step: [math.fsum(weights[step]), math.fsum(np.square(weights[step]))] for step in steps
        }
        return {
            "samples": {sample: dict(numbers) for sample in "abc"},
            "weights": {sample: dict(sums) for sample in "abc"},
            "normalisation": {sample: {"factor": 1.0} for sample in "abc"},
        }

    return counters_of("entries", *INGEST_STEPS, "events"), counters_of("events", *OUTCOMES)


def cutflow_of(
    ingested: dict[str, Any], selected: dict[str, Any], config: dict[str, Any], **options: bool
) -> list[Step]:
    """The cutflow of counters."""
    return cutflow(
        IngestCounters.model_validate(ingested),
        FeaturesCounters.model_validate(selected),
        config,
        **options,
    )


def test_the_selection_names_all_cuts() -> None:
    cuts: dict[str, Any] = {
        "lepton_flavours": ["electron"],
        "max_leptons": 2,
        "min_jets": 3,
        "min_jet_pt": 40,
    }

    assert selection({**CONFIG, "features": cuts}) == (
        "an e or mu with pT > 23 GeV, e with pT > 23 GeV, with isolation < 0.45, 1 to 2 of these "
        "leptons, 3 or more jets with pT > 40 GeV, |eta| < 2.6"
    )


def test_files_without_particles_have_no_cut_on_isolation() -> None:
    cuts = {"max_leptons": 2}
    lacking = applied_cuts(cuts, [{"missing_optional": ["tracks.pt"]}])
    config = {**CONFIG, "features": lacking}

    steps = cutflow_of(*counters({"rejected_no_lepton": [1.0], "selected": [2.0, -1.0]}), config)

    assert "isolation" not in selection(config)
    assert not any("isolation" in step.name for step in steps)
    assert steps[-1].yields["a"].events == 2
    assert applied_cuts(cuts, [{"missing_optional": ["weight"]}]) == cuts


def test_classes_add_up_their_samples() -> None:
    ingested, selected = counters({"rejected_no_lepton": [1.0], "selected": [2.0, -1.0]})

    steps = cutflow_of(ingested, selected, CONFIG, by_class=True)

    assert [step.yields["QCD"].events for step in steps] == [6, 6, 4, 4, 4]
    assert [step.yields["ttbar"].weight for step in steps] == [2.0, 2.0, 1.0, 1.0, 1.0]


def test_samples_of_a_class_add_up_in_physics_weights() -> None:
    ingested, selected = counters({"rejected_no_lepton": [1.0] * 3, "selected": [1.0]})
    selected["normalisation"] = {"a": {"factor": 1e6}, "b": {"factor": 1.0}, "c": {"factor": 1.0}}
    # Everything of b passes, a quarter of a: the class' efficiency is that of a.
    ingested["weights"]["b"] |= {"rejected_no_lepton": [0.0, 0.0], "entries": [1.0, 1.0]}

    last_step = cutflow_of(ingested, selected, CONFIG, by_class=True)[-1]

    assert last_step.yields["QCD"] == Yield(2, 1e6 + 1, 1e12 + 1)
    share = last_step.weighted["QCD"]
    assert share is not None
    assert share.value == pytest.approx(0.25, rel=1e-5)


def test_classes_of_several_samples_without_cross_sections_are_named() -> None:
    samples = [{**sample, "cross_section_pb": 2.0} for sample in CONFIG["samples"]]

    assert uncertain_mixtures({**CONFIG, "samples": samples}) == []
    assert uncertain_mixtures(CONFIG) == [
        "Class QCD: a, b do not all have a cross_section_pb and count by their numbers of events."
    ]


def test_an_efficiency_of_weights_that_add_up_to_nothing_is_not_measurable() -> None:
    steps = cutflow_of(*counters({"rejected_no_lepton": [1.0], "selected": [-1.0]}), CONFIG)

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
    weights = {"rejected_no_isolated_lepton": rejected, "selected": selected}

    last_step = cutflow_of(*counters(weights), CONFIG)[-1]

    passed, share = last_step.yields["a"], last_step.weighted["a"]
    assert passed.weight == pytest.approx(math.fsum(selected), rel=1e-12)
    assert passed.weight2 == pytest.approx(math.fsum(np.square(selected)), rel=1e-12)
    assert share is not None
    assert 0 <= share.low <= share.high <= 1


def test_intervals_of_weighted_samples_have_their_coverage() -> None:
    rng = np.random.default_rng(3)
    true_efficiency = 0.9 / 1.6
    num_covered = 0
    for _ in range(3000):
        is_passing = rng.random(300) < 0.3
        # Weights that differ between those that pass and those that fail, some of them negative.
        weights = rng.choice([0.5, 2.0, -0.5], 300) * np.where(is_passing, 3.0, 1.0)
        passing = weights[is_passing]
        share = efficiency(
            Yield(len(passing), passing.sum(), np.square(passing).sum()),
            Yield(len(weights), weights.sum(), np.square(weights).sum()),
        )
        assert share is not None
        num_covered += share.low <= true_efficiency <= share.high

    assert num_covered / 3000 == pytest.approx(0.683, abs=0.02)


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
    weights = {outcome: [1.0] * 2**index for index, outcome in enumerate(OUTCOMES)}

    steps = cutflow_of(*counters(weights), CONFIG | {"features": features})
    default_steps = cutflow_of(*counters(weights), CONFIG)

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
    assert [step.name for step in default_steps][3:] == [
        "... with isolation < 0.45",
        "all features finite: selected",
    ]
