"""The settings of a study: forms, combinations of varied values, keys without effect."""

from __future__ import annotations

from typing import Any

import pytest
from example_study import EQUAL_ACCURACY, STUDY, example_study
from pydantic import ValidationError

from hep_studies.nested_values import form_of
from hep_studies.study_sections import Claim

RATE = "train.learning_rate"
WORKERS = "train.workers"
PAIR = {"says": "x", "better": "sgd", "control": "ar-sgd", **EQUAL_ACCURACY}


@pytest.mark.parametrize(
    ("form", "algorithm", "train"),
    [
        ("full", {"tau": 5}, {"epochs": 9, "algorithm": {"name": "x", "tau": 5}}),
        # Another method has other keys.
        ("small", {"name": "y"}, {"epochs": 3, "algorithm": {"name": "y"}}),
    ],
)
def test_a_form_and_the_command_line_replace_only_their_values(
    form: str, algorithm: dict[str, Any], train: dict[str, Any]
) -> None:
    study = {
        "train": {"epochs": 3, "algorithm": {"name": "x", "tau": 2}},
        "forms": {"full": {"train": {"epochs": 9}}},
    }
    command_line = {"train": {"algorithm": algorithm}}

    settings = form_of(study, form, command_line)

    assert settings == {"train": train}


def test_every_combination_of_the_varied_keys_that_a_method_has_is_run() -> None:
    """A method that sets a key itself does not vary it."""
    fixed = {**STUDY["methods"]["ar-sgd"], "fixed": ["cluster.slow_ranks"]}
    study = example_study(
        methods={**STUDY["methods"], "fixed": fixed},
        vary={WORKERS: [2, 4], "cluster.slow_ranks": [{}, {0: 10.0}]},
    )

    def keys_of_runs(method: str) -> list[list[str]]:
        return [list(values) for values in study.combinations(method)]

    assert keys_of_runs("ar-sgd") == [[WORKERS, "cluster.slow_ranks"]] * 4
    assert keys_of_runs("sgd") == [["cluster.slow_ranks"]] * 2
    assert keys_of_runs("fixed") == [[WORKERS]] * 2


def test_a_run_has_the_values_of_its_varied_keys_and_its_seed() -> None:
    study = example_study(vary={WORKERS: [2, 4]})

    settings = study.train_settings("ar-sgd", {WORKERS: 2}, 7)

    assert settings.workers == 2
    assert settings.seed == 7
    assert study.single_worker == "sgd"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"workers": 4, "seed": 3}}, "seed: no effect in a study"),
        ({"vary": {"train.threads": [1, 2]}}, "train.threads: no effect in a study"),
        (
            {"vary": {"cluster.jitter": [0.1, 0.2]}, "execution": "mpi"},
            "cluster.jitter has no effect with execution",
        ),
        # The method sets the number of workers itself.
        (
            {
                "vary": {WORKERS: [2, 4]},
                "claims": [{**PAIR, "better": {"method": "sgd", WORKERS: 4}}],
            },
            "4 is none of the",
        ),
    ],
    ids=str,
)
def test_a_key_without_effect_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        example_study(**changes)


def test_a_varied_value_that_is_listed_twice_is_run_once() -> None:
    study = example_study(vary={WORKERS: [2, 4, 2], "cluster.slow_ranks": [{}, {"0": 10.0}, {}]})

    assert study.vary == {WORKERS: [2, 4], "cluster.slow_ranks": [{}, {"0": 10.0}]}


def test_the_old_name_of_the_control_is_read() -> None:
    claim = Claim.model_validate({"says": "x", "better": "sgd", "than": "ar-sgd", **EQUAL_ACCURACY})

    assert claim == Claim.model_validate(PAIR)


def test_a_control_with_both_names_is_refused() -> None:
    with pytest.raises(ValidationError, match="`than` is the old name of `control`"):
        Claim.model_validate({**PAIR, "than": "ar-sgd"})


@pytest.mark.parametrize("key", ["protocol", "measure"])
def test_a_claim_names_the_protocol_and_the_measure_of_its_source(key: str) -> None:
    incomplete = {name: value for name, value in PAIR.items() if name != key}

    with pytest.raises(ValidationError, match=rf"{key}\n  Field required"):
        Claim.model_validate(incomplete)


def test_a_further_row_at_the_best_settings_has_no_values_of_its_own() -> None:
    claim = {**PAIR, "at": {RATE: 0.1}, "also": [{"protocol": "each at its best"}]}
    study = example_study(vary={RATE: [0.1, 0.2]}, best_of=[RATE], claims=[claim])

    first, second = study.claims[0].rows()

    assert first.at == {RATE: 0.1}
    assert second.at == {}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"margin": 0.1}, "also: .*a margin needs `because`"),
        ({"tuned_by": "val_loss"}, "also: .*tuned_by has no effect with equal settings"),
        ({"protocol": "each at its best", "at": {RATE: 0.1}}, "has other keys in `at`"),
        (
            {"protocol": "each at its best", "tuned_by": "temporal_efficiency"},
            "also: .*temporal_efficiency compares with another method",
        ),
    ],
    ids=str,
)
def test_a_mistake_in_a_further_row_is_refused(row: dict[str, Any], message: str) -> None:
    claims = [{**PAIR, "at": {RATE: 0.1}, "also": [row]}]

    with pytest.raises(ValidationError, match=message):
        example_study(vary={RATE: [0.1, 0.2]}, best_of=[RATE], claims=claims)


def test_only_a_claim_that_one_is_better_speaks_of_a_share_of_cells() -> None:
    equivalence = {"says": "x", "equivalent": "sgd", "control": "ar-sgd", "share_of_cells": 0.5}

    with pytest.raises(ValidationError, match="share_of_cells has no effect on equivalent"):
        Claim.model_validate({**equivalence, **EQUAL_ACCURACY})


SITUATIONS = {
    "links": {
        "fast": {},
        "slow": {"cluster.latency_seconds": 0.01, "train.skew": {"dirichlet": 0.1}},
    }
}
LINKS = "situation.links"


def test_a_situation_sets_keys_of_the_training_and_of_the_cluster_together() -> None:
    study = example_study(situations=SITUATIONS, vary={LINKS: ["fast", "slow"]})

    fast, slow = study.combinations("ar-sgd")

    assert fast == {LINKS: "fast"}
    assert slow == {LINKS: "slow"}
    cluster = study.cluster_settings(slow)
    assert cluster.latency_seconds == 0.01
    assert cluster.step_seconds == 1e-3
    assert study.train_settings("ar-sgd", fast, 1).skew is None
    skew = study.train_settings("ar-sgd", slow, 1).skew
    assert skew is not None
    assert skew.dirichlet == 0.1


FIXED = {**STUDY["methods"]["sgd"], "fixed": [LINKS]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vary": {LINKS: ["fst"]}}, "no situation of links 'fst'.* Did you mean 'fast'"),
        ({"vary": {"situation.link": ["fast"]}}, "no situation 'link'.* Did you mean 'links'"),
        ({"situations": {"links": {"slow": {"latency": 1}}}}, "'latency' does not begin with"),
        ({"situations": {"links": {"slow": {"train.seed": 1}}}}, "seed: no effect in a study"),
        ({"execution": "mpi"}, "cluster.latency_seconds has no effect with execution: mpi"),
        (
            {
                "methods": {**STUDY["methods"], "sgd": FIXED},
                "claims": [
                    {**PAIR, "measure": "seconds_to_best=0.01", "protocol": "each at its best"}
                ],
            },
            "compares methods that vary the same keys; situation.links is varied by one",
        ),
    ],
    ids=str,
)
def test_a_situation_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    study = {"situations": SITUATIONS, "vary": {LINKS: ["fast", "slow"]}}

    with pytest.raises(ValidationError, match=message):
        example_study(**{**study, **changes})
