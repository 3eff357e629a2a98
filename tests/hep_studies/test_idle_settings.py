"""Settings of a study that do nothing are refused by name, with the fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from example_study import write_study

from hep_studies.study_files import read_study
from pipeline.errors import ConfigError

RATE = "train.learning_rate"
WORKERS = "train.workers"
LINKS = "situation.links"
SGD = {"train": {"algorithm": "sgd", "workers": 1}}
AR_SGD = {"train": {"algorithm": "ar-sgd"}}
SITUATIONS = {"links": {"fast": {}, "slow": {"cluster.latency_seconds": 0.01}}}
STUDY = {
    "methods": {"sgd": SGD, "ar-sgd": AR_SGD, "ad-psgd": {"train": {"algorithm": "ad-psgd"}}},
    "vary": {RATE: [0.1, 0.2], WORKERS: [2, 4]},
    "best_of": [RATE],
}


def methods(**changes: Any) -> dict[str, Any]:
    """A study with changes of its method sgd."""
    return {"methods": {**STUDY["methods"], "sgd": {**SGD, **changes}}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"situations": SITUATIONS},
            "situations.links.slow has no effect: no form has it in `vary` at situation.links",
        ),
        (
            {"situations": SITUATIONS, "vary": {RATE: [0.1], LINKS: ["fast"]}},
            "situations.links.slow has no effect: no form has it in `vary` at situation.links",
        ),
        ({"best_of": [], "extend": 2}, "extend has no effect: it needs best_of"),
        (
            {"methods": {"sgd": SGD}},
            "vary.train.workers has no effect: every method sets or fixes the key",
        ),
        (
            methods(vary={WORKERS: [1, 2]}),
            "methods.sgd.vary.train.workers has no effect: the method sets or fixes the key",
        ),
        (
            {"train": {"workers": 8}},
            "train.workers has no effect: every method sets or varies it",
        ),
        (
            {"seeds": 3, "forms": {"full": {"seeds": 3}}},
            "forms.full.seeds has no effect: 3 is the value of the file already",
        ),
        (
            {"train": {"batch_size": 8}, "forms": {"small": {"train": {"batch_size": 8}}}},
            "forms.small.train.batch_size has no effect: 8 is the value of the file already",
        ),
        (
            {"seeds": 3, "forms": {"small": {"seeds": 4}, "full": {"seeds": 5}}},
            "seeds has no effect: both forms replace this value of the file",
        ),
        (
            {"forms": {"smal": {"seeds": 4}}},
            "forms: there is no form 'smal'.* Did you mean 'small'",
        ),
        ({"forms": ["small"]}, "forms: it must hold the forms small and full"),
        ({"forms": {"full": 3}}, "forms.full: it must hold keys and values"),
        ({"forms": {"full": {"sedes": 3}}}, "form full.*\n.*unknown key 'sedes'.* 'seeds'"),
    ],
    ids=str,
)
def test_a_setting_that_does_nothing_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write_study(tmp_path, {**STUDY, **changes})

    with pytest.raises(ConfigError, match=message):
        read_study(path, "small")


@pytest.mark.parametrize("form", ["small", "full"])
def test_what_one_form_uses_the_other_may_leave(tmp_path: Path, form: str) -> None:
    """A situation, a value of `train` and a sweep have an effect if any form uses them."""
    full = {
        "vary": {LINKS: ["fast", "slow"]},
        "methods": {name: {"train": {"batch_size": 4}} for name in STUDY["methods"]},
        "extend": 1,
    }
    study = {
        **STUDY,
        "situations": SITUATIONS,
        "vary": {RATE: [0.1, 0.2], LINKS: ["fast"]},
        "train": {"batch_size": 8},
        "forms": {"full": full},
    }

    settings = read_study(write_study(tmp_path, study), form).settings

    assert list(settings.situations["links"]) == ["fast", "slow"]


def test_a_form_that_the_file_does_not_name_uses_the_values_of_the_file(tmp_path: Path) -> None:
    vary = {RATE: [0.1], LINKS: ["fast", "slow"]}
    forms = {"small": {"vary": {LINKS: ["fast"]}}}
    keys = {**STUDY, "situations": SITUATIONS, "vary": vary, "forms": forms}

    study = read_study(write_study(tmp_path, keys), "small").settings

    assert study.vary[LINKS] == ["fast"]


def test_a_change_of_the_config_leaves_the_rest_of_the_file_as_it_is(tmp_path: Path) -> None:
    vary = {RATE: [0.1], LINKS: ["fast", "slow"]}
    path = write_study(tmp_path, {**STUDY, "situations": SITUATIONS, "vary": vary})

    study = read_study(path, "small", {"vary": {LINKS: ["fast"]}}).settings

    assert study.vary[LINKS] == ["fast"]


def test_a_change_of_the_config_without_effect_is_refused(tmp_path: Path) -> None:
    path = write_study(tmp_path, {})

    message = (
        "section compare of the config has 1 mistake:\n  extend has no effect: it needs best_of"
    )
    with pytest.raises(ConfigError, match=message):
        read_study(path, "small", {"extend": 2})


def test_all_settings_that_do_nothing_are_named_at_once(tmp_path: Path) -> None:
    panels = [{"y": "val_loss", "log": ["x"]}]
    figures = [{"name": "x", "title": "x", "panels": panels}]
    changes = {"situations": SITUATIONS, "figures": figures}
    path = write_study(tmp_path, {**STUDY, **changes})

    with pytest.raises(ConfigError, match="3 mistakes") as caught:
        read_study(path, "small")

    assert len(str(caught.value).splitlines()) == 4


def write_with_slow_ranks(folder: Path, factors: str, small: str, full: str) -> str:
    """Write a study with factors of slow ranks by number, in the file and in both forms.

    JSON, which other tests write, has no numbers as keys.
    """
    methods = {"ar-sgd": AR_SGD}
    study_keys = {"methods": methods, "reference": "ar-sgd", "train": {"workers": 4}}
    path = write_study(folder, study_keys)
    sections = [
        f"cluster: {{slow_ranks: {factors}}}",
        "forms:",
        f"  small: {{cluster: {{slow_ranks: {small}}}}}",
        f"  full: {{cluster: {{slow_ranks: {full}}}}}",
    ]
    study = json.loads(Path(path).read_text())
    lines = [f"{key}: {json.dumps(value)}" for key, value in study.items()]
    Path(path).write_text("\n".join([*lines, *sections]))
    return path


@pytest.mark.parametrize(
    ("small", "full", "message"),
    [
        ("{3: 10.0}", "{3: 5.0}", "forms.small.cluster.slow_ranks.3 has no effect: 10.0 is"),
        ("{3: 4.0}", "{3: 5.0}", "  cluster.slow_ranks.3 has no effect: both forms replace"),
    ],
)
def test_a_slow_rank_that_does_nothing_is_named_by_its_number(
    tmp_path: Path, small: str, full: str, message: str
) -> None:
    path = write_with_slow_ranks(tmp_path, "{3: 10.0}", small, full)

    with pytest.raises(ConfigError, match=message):
        read_study(path, "small")


def test_forms_may_slow_further_ranks(tmp_path: Path) -> None:
    path = write_with_slow_ranks(tmp_path, "{3: 10.0}", "{1: 4.0}", "{2: 5.0}")

    study = read_study(path, "small").settings

    assert study.cluster_settings({}).slow_ranks == {1: 4.0, 3: 10.0}


def test_a_value_that_one_form_repeats_and_the_other_replaces_is_named_once(tmp_path: Path) -> None:
    forms = {"small": {"seeds": 3}, "full": {"seeds": 8}}
    path = write_study(tmp_path, {"seeds": 3, "forms": forms})

    with pytest.raises(ConfigError) as caught:
        read_study(path, "small")

    assert str(caught.value).splitlines() == [
        f"{path} has 1 mistake:",
        "  forms.small.seeds has no effect: 3 is the value of the file already; leave it out there.",
    ]
