"""Keys of the config without effect beside the others are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from minimal_configs import MINIMAL
from pydantic import ValidationError

from features.kernel_pass import unmixed_schema
from features.schema import features_schema
from pipeline.config import Config
from pipeline.runs.code_meaning import ROOT

SAMPLES: list[dict[str, Any]] = MINIMAL["samples"]
SHIFTED: dict[str, Any] = {"systematics": {"jet_scale": 0.02}}
DECORRELATE: dict[str, Any] = {"from": ["lepton_pt"], "strength": 10, "classes": ["QCD"]}
ERROR = {"cross_section_error_pb": 0.1}
WITH_ERRORS = [sample | ERROR for sample in SAMPLES]
NORMALISED = [sample | {"cross_section_pb": 2.0} for sample in SAMPLES]
#: The first class has no cross-section, so that there are no rates.
WITHOUT_RATES = [SAMPLES[0], *NORMALISED[1:]]
DATA: dict[str, Any] = {"data": ["d.root"]}


@pytest.mark.parametrize(
    ("settings", "key", "beside"),
    [
        (
            {"features": {"particles": False, "max_tracks": 5}},
            "features.max_tracks",
            {"features": {"max_tracks": 5}},
        ),
        (
            {"features": {"particles": False, "ordering": "file"}},
            "features.ordering",
            {"features": {}},
        ),
        (
            {"features": {"btag_mask": 2}, "ingest": {"min_btag": 0.5}},
            "features.btag_mask",
            {"ingest": {}},
        ),
        (
            {"ingest": {"max_bad_files": 3}},
            "ingest.max_bad_files",
            {"ingest": {"max_bad_files": 3, "on_bad_file": "skip"}},
        ),
        ({"samples": WITH_ERRORS}, "cross_section_error_pb", {"samples": SAMPLES}),
        (
            {"export": {"hls4ml_bits": [8]}},
            "export.hls4ml_bits",
            {"export": {"hls4ml_bits": [8], "hls4ml": True}},
        ),
        (
            {"export": {"hls4ml": True}, "model": {"names": ["particles"]}},
            "export.hls4ml",
            {"model": {"names": ["hlf"]}},
        ),
        (
            {"simulate": {"pile_up": {"mean": 0, "pool": 9}}},
            "simulate.pile_up.pool",
            {"simulate": {}},
        ),
        (
            {"simulate": {"lepton_filter": {"min_pt": 0, "thinning": 9}}},
            "simulate.lepton_filter.thinning",
            {"simulate": {}},
        ),
        (
            {"gridsearch": {"search": "random", "num_trials": 81}},
            "num_trials",
            {"gridsearch": {"search": "random", "num_trials": 80}},
        ),
        (
            {"simulate": {"energy_tev": 14}},
            "simulate",
            {"simulate": {"energy_tev": 14, "processes": [{"name": "qcd"}]}},
        ),
        (
            {"model": {"names": ["particles"]}, "evaluate": SHIFTED | {"reference": False}},
            "evaluate.systematics.jet_scale",
            {"evaluate": SHIFTED},
        ),
        (
            {"evaluate": {"blind_above": 0.3}},
            "evaluate.blind_above",
            {"evaluate": DATA | {"blind_above": 0.3}},
        ),
        (
            {"evaluate": {"unblind": True}},
            "evaluate.unblind",
            {"evaluate": DATA | {"unblind": True}},
        ),
        (
            {"evaluate": DATA | {"blind_above": 0.3, "unblind": True}},
            "evaluate.blind_above",
            {"evaluate": DATA | {"blind_above": 0.3}},
        ),
        (
            {"samples": WITHOUT_RATES, "evaluate": {"fractions": "equal"}},
            "evaluate.fractions",
            {"samples": NORMALISED},
        ),
        (
            {"samples": WITHOUT_RATES, "evaluate": {"luminosity": 1e34}},
            "evaluate.luminosity",
            {"samples": NORMALISED},
        ),
        (
            {"samples": WITHOUT_RATES, "features": {"integrated_luminosity": 10}},
            "features.integrated_luminosity",
            {"samples": NORMALISED},
        ),
        (
            {"samples": [WITHOUT_RATES[0], WITHOUT_RATES[1], NORMALISED[2] | ERROR]},
            "sample 'wjets': cross_section_error_pb",
            {"samples": [*NORMALISED[:2], NORMALISED[2] | ERROR]},
        ),
    ],
    ids=str,
)
def test_a_key_without_effect_beside_the_others_is_refused(
    settings: dict[str, Any], key: str, beside: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError, match=f"{key}: .* has no effect: it needs"):
        Config.model_validate({**MINIMAL, **settings})

    Config.model_validate({**MINIMAL, **settings, **beside})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": ["QCD", "ttbar", "W+jets", "Z"]}, r"class 'Z' \(label 3\) has no samples"),
        (
            {
                "samples": [
                    {
                        "name": f"{name}{label}",
                        "label": label,
                        "files": ["a"],
                        "cross_section_pb": expected,
                    }
                    for label in range(3)
                    for name, expected in (("low", 2.0), ("high", None if label == 1 else 3.0))
                ]
            },
            "class 'ttbar': high1 has no cross_section_pb, others have",
        ),
        (
            {"evaluate": {"luminosity": 1e34}},
            r"luminosity: 1e\+34 has no effect: it needs cross_section_pb of all",
        ),
        (
            {"features": {"integrated_luminosity": 3}},
            "integrated_luminosity: 3.0 has no effect: it needs cross_section_pb of all",
        ),
        (
            {
                "evaluate": {"data": ["a"]},
                "samples": [{**sample, "cross_section_pb": 1.0} for sample in SAMPLES],
            },
            r"evaluate.data: the simulation needs the luminosity of the data.*features.integrated_luminosity \[1/pb\]",
        ),
        ({"classes": ["QCD", "ttbar"]}, "'wjets' has the label 2, but classes has only 2 names"),
        ({"samples": [SAMPLES[0], SAMPLES[0]]}, "the name 'qcd' is given twice"),
        (
            {"features": {"min_lepton_pt": 10}},
            r"features.min_lepton_pt \(10\) is below ingest.min_lepton_pt \(23\)",
        ),
        ({"classes": ["A", "A", "B"]}, "'A' is blank, given twice"),
        ({"classes": ["A", " ", "B"]}, "' ' is blank, given twice"),
        # Branches of predictions keep no other letters of a class.
        ({"classes": ["A", "μ", "B"]}, "'μ' is blank, given twice"),
        ({"classes": ["e+jets", "μ+jets", "τ+jets"]}, "'μ\\+jets' is blank, given twice"),
        ({"run_dir": str(ROOT)}, "holds the code of the pipeline"),
        ({"run_dir": str(ROOT / "features" / "x")}, "holds the code of the pipeline"),
        (
            {"ingest": {"pass_through": ["Event.Number"] * 2}},
            "there is a column 'Event.Number' already",
        ),
        (
            {"train_by_network": {"hlf": {"epoch": 3}}},
            "hlf.*: unknown key 'epoch'. Did you mean 'epochs'?",
        ),
        (
            {"train_by_network": {"particles": {"epochs": 0}}},
            "train_by_network.particles: 'epochs': .*given: 0",
        ),
        (
            {"train": {"workers": 2}, "train_by_network": {"hlf": {"algorithm": "sgd"}}},
            "train_by_network.hlf.*ar-sgd",
        ),
        (
            {"train": {"decorrelate": DECORRELATE | {"from": ["lepton_tp"]}}},
            "decorrelate.from: there is no column 'lepton_tp'. Did you mean 'lepton_pt'?",
        ),
        (
            {"train": {"decorrelate": DECORRELATE | {"from": ["label"]}}},
            "decorrelate.from: the label is what the network learns",
        ),
        (
            {
                "features": {"particles": False},
                "train_by_network": {
                    "hlf": {"decorrelate": DECORRELATE | {"from": ["num_particles"]}}
                },
            },
            "decorrelate.from: there is no column 'num_particles'",
        ),
        (
            {"train": {"decorrelate": DECORRELATE | {"classes": ["qcd"]}}},
            "decorrelate.classes: there is no class 'qcd'. Did you mean 'QCD'",
        ),
        (
            {"train": {"decorrelate": DECORRELATE | {"signal": ["ttbar", "Z"]}}},
            "decorrelate.signal: there is no class 'Z'",
        ),
        (
            {"train": {"decorrelate": DECORRELATE | {"signal": MINIMAL["classes"]}}},
            "decorrelate.signal: leave a class for the background",
        ),
        ({"evaluate": {"signal": "ttbra"}}, "there is no class 'ttbra'. Did you mean 'ttbar'?"),
        ({"evaluate": {"signal": ["ttbar", "WJets"]}}, "there is no class 'WJets'"),
        ({"evaluate": {"signal": ["QCD", "ttbar", "W+jets"]}}, "leave one for the background"),
    ],
    ids=str,
)
def test_sections_that_do_not_fit_each_other_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        Config.model_validate({**MINIMAL, **settings})


def test_features_and_branches_may_be_decorrelated_from() -> None:
    columns = ["lepton_pt", "num_particles", "Jet.Mass"]
    settings = {
        **MINIMAL,
        "ingest": {"pass_through": ["Jet.Mass"]},
        "train": {"decorrelate": DECORRELATE | {"from": columns}},
    }

    training = Config.model_validate(settings).trainings_of("hlf")["hlf"]

    assert training.decorrelate is not None
    assert training.decorrelate.columns == columns
    # Without a key of its own, the signal is that of the evaluation.
    assert training.decorrelate.signals == ["ttbar"]


TAKEN_COLUMNS = {
    *unmixed_schema().names,
    *features_schema().names,
    "predicted",
    "probability_ttbar",
}


@pytest.mark.parametrize("name", sorted(TAKEN_COLUMNS))
def test_a_pass_through_branch_has_no_name_of_our_columns(name: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(f"there is a column '{name}' already")):
        Config.model_validate({**MINIMAL, "ingest": {"pass_through": [name]}})


def test_a_warm_up_fits_the_fewest_epochs_of_the_search() -> None:
    settings = {
        **MINIMAL,
        "train": {"schedule": {"warmup_epochs": 9}},
        "gridsearch": {"epochs": [20, 5]},
    }

    Config.model_validate(settings)
    message = r"train\.schedule\.warmup_epochs: 9 of 5 epoch.* raise gridsearch\.epochs"
    with pytest.raises(ValidationError, match=message) as refused:
        Config.model_validate({**settings, "model": {"hlf": {"from_gridsearch": True}}})
    assert "train.epochs" not in str(refused.value)


def test_a_sample_of_several_classes_may_have_the_name_of_one_of_them() -> None:
    labels = {"flavour == 0": 0, "flavour == 6": 1, "flavour == 24": 2}
    sample = {"name": "qcd", "label_by": labels, "files": ["a.root"]}

    Config.model_validate({**MINIMAL, "samples": [sample]})
