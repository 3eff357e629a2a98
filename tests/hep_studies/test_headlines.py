"""Sentences at the top of the page of claims: quoted numbers, and what must not be quoted."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from example_study import EQUAL_ACCURACY, example_check, example_result, example_run, example_study

from hep_studies.headlines import NUM_HEADLINES, JudgedStudy, headlines
from hep_studies.judging import judge

BETTER = {"says": "It is better.", "name": "better", "better": "ad-psgd", "control": "ar-sgd"}
CORRECT = {"ar-sgd": 800, "sgd": 900, "ad-psgd": 950}
SECONDS = {"ar-sgd": 0.2, "sgd": 0.2, "ad-psgd": 0.1}


def judged_study(claim: dict[str, Any], *, refused: str = "", **study: Any) -> JudgedStudy:
    """A study of three seeds in which AD-PSGD is better by 15 points, and takes half the time.

    `refused`: why its checks of times are not used.
    """
    runs = []
    for seed in (1, 2, 3):
        for method, correct in CORRECT.items():
            seconds = SECONDS[method]
            runs.append(example_run(method, seed, correct=correct, seconds=seconds))
    checks = []
    for method in ("ar-sgd", "ad-psgd"):
        check = example_check(method, 1e-3, 1e-3)
        checks.append(replace(check, refused=refused))
    settings = example_study(claims=[claim], **study)
    result = example_result(settings, runs, checks=checks)
    return JudgedStudy("example.md", result, judge(result))


def test_a_sentence_has_the_numbers_of_the_claims_that_it_names() -> None:
    study = judged_study({**BETTER, **EQUAL_ACCURACY})
    paragraphs = """
        With <example/better:sample>, <example/better:control> become
        <example/better:treatment>: <example/better=confirmed>.
    """

    (sentence,) = headlines(paragraphs, [study])

    sample = "With 800 training and 1,000 test events, 3 seeds, 80.00 % become 95.00 %: +15.00 ("
    assert sentence.startswith(sample)


@pytest.mark.parametrize(
    ("statement", "is_true"),
    [
        ("confirmed", True),
        ("contradicted or confirmed", True),
        ("above 0", True),
        ("around 0", False),
        ("below 0 or around 0", False),
    ],
)
def test_a_sentence_names_a_verdict_or_where_the_interval_lies(
    statement: str, is_true: bool
) -> None:
    study = judged_study({**BETTER, **EQUAL_ACCURACY})

    sentences = headlines(f"<example/better={statement}>", [study])

    assert len(sentences) == is_true


@pytest.mark.parametrize(
    "quotation",
    ["example/better=contradicted", "example/other=confirmed", "other/better:sample"],
)
def test_a_sentence_is_left_out_if_a_claim_is_missing_or_judged_otherwise(quotation: str) -> None:
    study = judged_study({**BETTER, **EQUAL_ACCURACY})
    paragraphs = f"<example/better=confirmed> but <{quotation}>.\n\nSecond."

    sentences = headlines(paragraphs, [study])

    assert sentences == ["Second."]


@pytest.mark.parametrize(
    ("measure", "refused", "is_quoted"),
    [("seconds", "", True), ("seconds", "busy", False), ("test_accuracy", "busy", True)],
)
def test_times_whose_check_was_disturbed_are_not_quoted(
    measure: str, refused: str, is_quoted: bool
) -> None:
    claim = {**BETTER, "protocol": "equal settings", "measure": measure}
    study = judged_study(claim, refused=refused)

    sentences = headlines("<example/better=confirmed>", [study])

    assert len(sentences) == is_quoted


@pytest.mark.parametrize(("rates", "is_quoted"), [([0.1, 0.2, 0.3], True), ([0.2, 0.3], False)])
def test_best_settings_at_the_edge_of_their_sweep_are_not_quoted(
    rates: list[float], is_quoted: bool
) -> None:
    claim = {**BETTER, **EQUAL_ACCURACY, "protocol": "each at its best", "tuned_by": "val_loss"}
    key = "train.learning_rate"
    settings = example_study(claims=[claim], vary={key: rates}, best_of=[key])
    # All methods are best at a rate of 0.2.
    runs = []
    for seed, rate in product((1, 2, 3), rates):
        num_lost = 0 if rate == 0.2 else 1
        for method, correct in CORRECT.items():
            run = example_run(method, seed, correct=correct - num_lost, values={key: rate})
            runs.append(run)
    result = example_result(settings, runs)
    study = JudgedStudy("example.md", result, judge(result))

    sentences = headlines("<example/better=confirmed>", [study])

    assert len(sentences) == is_quoted


def test_there_are_five_sentences_at_most() -> None:
    paragraphs = "\n\n".join(f"Sentence {index}." for index in range(7))

    sentences = headlines(paragraphs, [])

    assert sentences == [f"Sentence {index}." for index in range(NUM_HEADLINES)]
