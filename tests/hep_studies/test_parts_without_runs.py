"""Claims, figures and tables without the runs to judge or to show are refused, with the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from example_study import EQUAL_ACCURACY, write_study

from hep_studies.study_files import read_study
from pipeline.errors import ConfigError

RATE = "train.learning_rate"
WORKERS = "train.workers"
CLAIM = {"says": "x", "better": "ad-psgd", "control": "ar-sgd", **EQUAL_ACCURACY, "at": {RATE: 0.1}}
AT_TWO = {"train": {"workers": 2}}
STUDY = {
    "methods": {
        "sgd": {"train": {"algorithm": "sgd", "workers": 1}},
        "ar-sgd": {"train": {"algorithm": "ar-sgd"}},
        "ad-psgd": {"train": {"algorithm": "ad-psgd"}},
    },
    "vary": {RATE: [0.1, 0.2], WORKERS: [2, 4]},
    "best_of": [RATE],
}


def claim(**changes: Any) -> dict[str, Any]:
    """A study with one claim."""
    return {"claims": [{**CLAIM, **changes}]}


def flat(method: str, over: str) -> dict[str, Any]:
    """A study that claims that a method is flat over a key."""
    return {
        "claims": [{"says": "x", "flat": method, "over": over, **EQUAL_ACCURACY, "at": {RATE: 0.1}}]
    }


def panel(**changes: Any) -> dict[str, Any]:
    """A study with one figure of one panel."""
    panel_keys = {"y": "val_loss", "x": "epoch", **changes}
    return {"figures": [{"name": "x", "title": "x", "panels": [panel_keys]}]}


def table(**changes: Any) -> dict[str, Any]:
    """A study with one table."""
    return {"tables": [{"title": "x", "measures": ["seconds"], **changes}]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            claim(at={RATE: 0.7}),
            "claims.0.at: train.learning_rate: 0.7 is none of the values that are run: 0.1, 0.2",
        ),
        (flat("sgd", WORKERS), "claims.0.over: sgd has fewer than two values of train.workers"),
        (flat("ad-psgd", RATE), "claims.0.over: train.learning_rate is a key of best_of"),
        (
            claim(control="ad-psgd"),
            "claims.0.control: it has no other runs of ad-psgd than claims.0.better, or none at",
        ),
        (
            claim(better={"method": "ad-psgd", WORKERS: 4}, control={"method": "ad-psgd"}),
            "claims.0.control: it has no other runs",
        ),
        (
            panel(methods=["sgd"], where={WORKERS: 2}),
            "figures.0.panels.0.where: train.workers: 2 is none of .* since sgd does not vary",
        ),
        (
            panel(methods=["sgd"], x=WORKERS, y="seconds"),
            "figures.0.panels.0.x: no method of the panel varies train.workers",
        ),
        (panel(x=None, log=["x"]), "figures.0.panels.0.log: boxes have no axis x"),
        (
            table(methods=["sgd"], over=WORKERS),
            "tables.0.over: no method of the table varies train.workers",
        ),
        (
            table(methods=["sgd"], given={"ar-sgd": "90 %"}),
            "tables.0.given: ar-sgd is none of the rows",
        ),
    ],
    ids=str,
)
def test_a_part_without_runs_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write_study(tmp_path, {**STUDY, **changes})

    with pytest.raises(ConfigError, match=message):
        read_study(path, "small")


def test_a_claim_that_no_run_can_decide_needs_no_runs(tmp_path: Path) -> None:
    changes = claim(control="ad-psgd", not_decidable="it needs a cluster")

    study = read_study(write_study(tmp_path, {**STUDY, **changes}), "small").settings

    assert study.claims[0].not_decidable == "it needs a cluster"


@pytest.mark.parametrize(
    ("parts", "changes"),
    [
        (claim(at={RATE: 0.2}), {"vary": {RATE: [0.1]}}),
        (flat("ad-psgd", WORKERS), {"vary": {WORKERS: [2]}}),
        (panel(methods=["ad-psgd"], x=WORKERS, y="seconds"), {"methods": {"ad-psgd": AT_TWO}}),
        (table(methods=["ad-psgd"], over=WORKERS), {"methods": {"ad-psgd": AT_TWO}}),
    ],
    ids=str,
)
def test_a_config_may_leave_parts_of_the_file_without_runs(
    tmp_path: Path, parts: dict[str, Any], changes: dict[str, Any]
) -> None:
    path = write_study(tmp_path, {**STUDY, **parts})

    study = read_study(path, "small", changes).settings

    assert study.claims + study.figures + study.tables


def test_a_claim_of_the_config_must_have_runs(tmp_path: Path) -> None:
    path = write_study(tmp_path, STUDY)

    with pytest.raises(ConfigError) as caught:
        read_study(path, "small", claim(at={RATE: 0.7}))

    assert str(caught.value).splitlines() == [
        f"{path} with the section compare of the config has 1 mistake:",
        "  claims.0.at: train.learning_rate: 0.7 is none of the values that are run: 0.1, 0.2.",
    ]
