"""Keys of the config without effect beside the others are refused."""

from __future__ import annotations

from typing import Any

import pytest
from minimal_configs import MINIMAL
from pydantic import ValidationError

from pipeline.config import Config

SAMPLES: list[dict[str, Any]] = MINIMAL["samples"]
SHIFTED: dict[str, Any] = {"systematics": {"jet_scale": 0.02}}
WITH_ERRORS = [sample | {"cross_section_error_pb": 0.1} for sample in SAMPLES]


@pytest.mark.parametrize(
    ("chosen", "key", "beside"),
    [
        ({"features": {"particles": False, "max_tracks": 5}}, "features.max_tracks", {"features": {"max_tracks": 5}}),
        ({"features": {"particles": False, "ordering": "file"}}, "features.ordering", {"features": {}}),
        ({"features": {"btag_mask": 2}, "ingest": {"min_btag": 0.5}}, "features.btag_mask", {"ingest": {}}),
        (
            {"ingest": {"max_bad_files": 3}},
            "ingest.max_bad_files",
            {"ingest": {"max_bad_files": 3, "on_bad_file": "skip"}},
        ),
        ({"samples": WITH_ERRORS}, "cross_section_error_pb", {"samples": SAMPLES}),
        ({"export": {"hls4ml_bits": [8]}}, "export.hls4ml_bits", {"export": {"hls4ml_bits": [8], "hls4ml": True}}),
        (
            {"export": {"hls4ml": True}, "model": {"names": ["particles"]}},
            "export.hls4ml",
            {"model": {"names": ["hlf"]}},
        ),
        ({"simulate": {"pile_up": {"mean": 0, "pool": 9}}}, "simulate.pile_up.pool", {"simulate": {}}),
        (
            {"simulate": {"lepton_filter": {"min_pt": 0, "thinning": 9}}},
            "simulate.lepton_filter.thinning",
            {"simulate": {}},
        ),
        ({"gridsearch": {"halving_factor": 2}}, "halving_factor", {"gridsearch": {"search": "halving"}}),
        (
            {"gridsearch": {"search": "random", "num_trials": 81}},
            "num_trials",
            {"gridsearch": {"search": "random", "num_trials": 80}},
        ),
        (
            {"gridsearch": {"search": "halving", "epochs": [1]}},
            "search",
            {"gridsearch": {"search": "halving", "epochs": [2]}},
        ),
        (
            {"gridsearch": {"search": "halving", "num_trials": 2}},
            "search",
            {"gridsearch": {"search": "halving", "num_trials": 3}},
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
    ],
    ids=str,
)
def test_a_key_without_effect_was_accepted(chosen: dict[str, Any], key: str, beside: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=f"{key}: .* has no effect: it needs"):
        Config.model_validate({**MINIMAL, **chosen})
    Config.model_validate({**MINIMAL, **chosen, **beside})


def test_a_warm_up_longer_than_the_search_allows_was_a_bug_after_the_search() -> None:
    chosen = {**MINIMAL, "train": {"schedule": {"warmup_epochs": 9}}, "gridsearch": {"epochs": [20, 5]}}
    Config.model_validate(chosen)
    with pytest.raises(ValidationError, match="there are 5 epoch"):
        Config.model_validate({**chosen, "model": {"hlf": {"from_gridsearch": True}}})
