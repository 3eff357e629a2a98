"""Names in a study: a message has the path of the key and the nearest valid name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from example_study import EQUAL_ACCURACY, write_study

from hep_studies.study_files import read_study
from pipeline.errors import ConfigError

RATE = "train.learning_rate"
CLAIM = {"says": "x", "better": "sgd", "control": "ar-sgd", **EQUAL_ACCURACY, "at": {RATE: 0.1}}
SWEEP = {"vary": {RATE: [0.1, 0.2]}, "best_of": [RATE]}
SGD = {"train": {"algorithm": "sgd", "workers": 1}}
AR_SGD = {"train": {"algorithm": "ar-sgd"}}


def claim(**changes: Any) -> dict[str, Any]:
    """A study with one claim."""
    return {"claims": [{**CLAIM, **changes}]}


def panel(**changes: Any) -> dict[str, Any]:
    """A study with one figure of one panel."""
    return {
        "figures": [
            {"name": "x", "title": "x", "panels": [{"y": "val_loss", "x": "epoch"} | changes]}
        ]
    }


def table(**changes: Any) -> dict[str, Any]:
    """A study with one table."""
    return {"tables": [{"title": "x", "measures": ["seconds"], **changes}]}


def sgd(**changes: Any) -> dict[str, Any]:
    """A study with changes of its method sgd."""
    return {"methods": {"sgd": {**SGD, **changes}, "ar-sgd": AR_SGD}}


def situation(values: dict[str, Any]) -> dict[str, Any]:
    """A study that varies a situation of these values."""
    return {
        "situations": {"links": {"slow": values}},
        "vary": {RATE: [0.1, 0.2], "situation.links": ["slow"]},
    }


def message_of(tmp_path: Path, changes: dict[str, Any]) -> str:
    """The message about the mistakes of a study."""
    study = {"methods": {"sgd": SGD, "ar-sgd": AR_SGD}, **SWEEP, **changes}
    with pytest.raises(ConfigError) as caught:
        read_study(write_study(tmp_path, study), "small")
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "path", "nearest"),
    [
        ({"refrence": "sgd"}, "refrence", "reference"),
        ({"reference": "sdg"}, "reference", "sgd"),
        ({"best_of": ["train.learning_rte"]}, "best_of.0", RATE),
        ({"train": {"epoch": 3}}, "train.epoch", "epochs"),
        (sgd(train={"algorithm": "sgd", "epoch": 3}), "methods.sgd.train.epoch", "epochs"),
        (sgd(trian={}), "methods.sgd.trian", "train"),
        (sgd(fixed=["train.learning_rte"]), "methods.sgd.fixed.0", RATE),
        (sgd(vary={"train.learning_rte": [0.1]}), "methods.sgd.vary", RATE),
        ({"cluster": {"latncy_seconds": 1}}, "cluster.latncy_seconds", "latency_seconds"),
        (
            {"vary": {RATE: [0.1], "cluster.slow_rank": [{}]}},
            "vary.cluster.slow_rank",
            "slow_ranks",
        ),
        (
            situation({"train.epoch": 1}),
            "situations.links.slow.train.epoch",
            "epochs",
        ),
        (
            situation({"cluster.latncy_seconds": 1}),
            "situations.links.slow.cluster.latncy_seconds",
            "latency_seconds",
        ),
        (claim(mesure="seconds"), "claims.0.mesure", "measure"),
        (claim(control="ar-sdg"), "claims.0.control", "ar-sgd"),
        (claim(control=["ar-sgd", "sdg"]), "claims.0.control.1", "sgd"),
        (claim(better={"metod": "sgd"}), "claims.0.better", "method"),
        (claim(better={"method": "sgd", "train.learning_rte": 1}), "claims.0.better", RATE),
        (claim(at={"train.learning_rte": 0.1}), "claims.0.at", RATE),
        (claim(also=[{"at": {"train.learning_rte": 1}}]), "claims.0.also.0.at", RATE),
        (panel(wher={}), "figures.0.panels.0.wher", "where"),
        (panel(x="epochs"), "figures.0.panels.0.x", "epoch"),
        (panel(methods=["sgd", "ar-sdg"]), "figures.0.panels.0.methods.1", "ar-sgd"),
        (panel(where={"train.learning_rte": 1}), "figures.0.panels.0.where", RATE),
        (table(measurs=["x"]), "tables.0.measurs", "measures"),
        (table(over="train.learning_rte"), "tables.0.over", RATE),
        (table(methods=["ar-sdg"]), "tables.0.methods.0", "ar-sgd"),
        (table(given={"ar-sdg": "1"}), "tables.0.given", "ar-sgd"),
    ],
    ids=str,
)
def test_a_mistyped_name_is_said_with_file_path_and_nearest_name(
    tmp_path: Path, changes: dict[str, Any], path: str, nearest: str
) -> None:
    message = message_of(tmp_path, changes)

    assert message.startswith(str(tmp_path / "mine.yaml"))
    assert re.search(rf"(^|[ ']){re.escape(path)}(:|')", message, re.MULTILINE)
    assert f"Did you mean '{nearest}'?" in message


def test_runs_of_a_claim_without_a_method_are_refused(tmp_path: Path) -> None:
    message = message_of(tmp_path, claim(control={RATE: 0.1}))

    assert "claims.0.control: 'method' is missing." in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            claim(better={"method": "sgd", "train.workers": 4}),
            "claims.0.better: train.workers: 4 is none of the values that are run, since sgd does",
        ),
        (
            claim(better={"method": "ar-sgd", "train.workers": 3}),
            "claims.0.better: train.workers: 3 is none of the values that are run: 2, 4.",
        ),
        (
            panel(where={"train.workers": 3}),
            "figures.0.panels.0.where: train.workers: 3 is none of the values that are run: 2, 4.",
        ),
    ],
    ids=str,
)
def test_a_value_that_is_not_run_is_said_with_those_that_are(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    vary = {"vary": {RATE: [0.1, 0.2], "train.workers": [2, 4]}}

    assert message in message_of(tmp_path, {**vary, **changes})
