"""Ten claims of the stored studies, recomputed by code that does not import the judging."""

from __future__ import annotations

import ast
import math
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import pytest
import recomputed_claims
from recomputed_claims import (
    Effect,
    Side,
    effect_of_events,
    effect_of_numbers,
    lowest_val_loss,
    seconds_to,
    side,
    val_accuracy_at_end,
    with_errors_of_times,
    with_errors_of_validations,
)

from hep_studies.claims import _with_current_presentation
from hep_studies.judging import JudgedClaim, judge
from hep_studies.study_result import PACKED_FILE, read_study_result


class Recomputed(NamedTuple):
    """A claim of a study, and both sides of its first comparison."""

    study: str
    sentence: str
    measure: str
    tuned_by: str
    """The measure by which the judging chooses best rates; empty for equal settings."""
    treatment: Side
    control: Side

    def effect(self, level: float) -> Effect:
        """The effect in the claim's direction."""
        pair = self.treatment, self.control
        if self.measure == "test_accuracy":
            return effect_of_events(self.study, *pair, level)
        if self.measure == "val_loss":
            return effect_of_numbers(*pair, lowest_val_loss, level, sign=-1)
        number, sign = LOGARITHMS[self.measure]
        effect = effect_of_numbers(*pair, number, level, sign=sign)
        effect = with_errors_of_times(self.study, effect, *pair)
        _, _, accuracy = self.measure.partition("seconds_to=")
        if accuracy:
            effect = with_errors_of_validations(effect, *pair, float(accuracy))
        return effect


def log_seconds_to(accuracy: float, run: recomputed_claims.Run) -> float:
    return math.log(seconds_to(accuracy, run))


#: The logarithm of a time or rate, and the sign that makes the better one positive.
LOGARITHMS = {
    "seconds": (lambda run: math.log(sum(run["curves"]["seconds"])), -1),
    "seconds_to=0.85": (partial(log_seconds_to, 0.85), -1),
    "seconds_to=0.88": (partial(log_seconds_to, 0.88), -1),
    # The time of one worker is the same for both.
    "speed_up": (lambda run: math.log(run["numbers"]["samples_per_second"]), 1),
    "communication_per_epoch": (
        lambda run: math.log(recomputed_claims.median(run["curves"]["communicate"])),
        -1,
    ),
}


def soonest(accuracy: float, run: recomputed_claims.Run) -> float:
    """A number that is high for a run that reaches an accuracy soon."""
    return -math.log(seconds_to(accuracy, run))


def hlf(method: str) -> Side:
    """Runs of thesis-hlf at Adam's default rate."""
    return side("thesis-hlf-full", method, learning_rate=0.001)


def best_hlf(method: str) -> Side:
    return side("thesis-hlf-full", method, tuned_by=val_accuracy_at_end)


def best_easgd(tuned_by: recomputed_claims.Number) -> tuple[Side, Side]:
    """EASGD on 16 workers and its baseline."""
    easgd = side("easgd-sweeps", "easgd", workers=16, algorithm__local_steps=4, tuned_by=tuned_by)
    return easgd, side("easgd-sweeps", "msgd", tuned_by=tuned_by)


def best_mpca(method: str) -> Side:
    return side("mpca-table-2-full", method, tuned_by=partial(soonest, 0.88))


def best_momentum(method: str) -> Side:
    return side("thesis-momentum-full", method, tuned_by=val_accuracy_at_end)


SLOWMO = "SlowMo leads to a better accuracy of AD-PSGD."
EASGD = "EASGD reaches an accuracy before the baseline."


@cache
def recomputed_claims_of_docs() -> list[Recomputed]:
    """The ten claims; reading the stored results takes seconds."""
    hlf_study, easgd_study = "thesis-hlf-full", "easgd-sweeps"
    slowmo = hlf("ad-psgd-slowmo"), hlf("ad-psgd")
    best_slowmo = best_hlf("ad-psgd-slowmo"), best_hlf("ad-psgd")
    epochs = hlf("ad-psgd-slowmo-no-avg"), hlf("ar-sgd")
    by_test_events = best_easgd(recomputed_claims.accuracy_on_test)
    fastest = best_easgd(partial(soonest, 0.85))
    scaling = [side("thesis-scaling", method, workers=16) for method in ("ad-psgd", "ar-sgd")]
    communication = [side("thesis-epoch-times", method) for method in ("ad-psgd", "ar-sgd")]
    goal = "seconds_to=0.85"
    return [
        Recomputed(hlf_study, SLOWMO, "test_accuracy", "", *slowmo),
        Recomputed(hlf_study, SLOWMO, "val_loss", "", *slowmo),
        Recomputed(hlf_study, SLOWMO, "test_accuracy", "val_accuracy", *best_slowmo),
        Recomputed(
            hlf_study, "AD-PSGD needs less time for its epochs than AR-SGD.", "seconds", "", *epochs
        ),
        Recomputed(easgd_study, EASGD, goal, "test_accuracy", *by_test_events),
        Recomputed(easgd_study, EASGD, goal, goal, *fastest),
        Recomputed(
            "mpca-table-2-full",
            "MPCA reaches it before EASGD.",
            "seconds_to=0.88",
            "seconds_to=0.88",
            best_mpca("mpca"),
            best_mpca("easgd"),
        ),
        Recomputed(
            "thesis-momentum-full",
            "With the momentum kept, slow momentum improves AD-PSGD.",
            "test_accuracy",
            "val_accuracy",
            best_momentum("kept"),
            best_momentum("ad-psgd"),
        ),
        Recomputed(
            "thesis-scaling", "AD-PSGD scales better than AR-SGD.", "speed_up", "", *scaling
        ),
        Recomputed(
            "thesis-epoch-times",
            "AD-PSGD communicates much less than AR-SGD.",
            "communication_per_epoch",
            "",
            *communication,
        ),
    ]


@cache
def judged_claims(study: str) -> list[JudgedClaim]:
    result = read_study_result(recomputed_claims.STUDIES / study / PACKED_FILE)
    return judge(_with_current_presentation(result))


def judged_row(recomputed: Recomputed) -> JudgedClaim:
    """The row of the page that says the same sentence by the same protocol and measure."""
    for judged in judged_claims(recomputed.study):
        claim = judged.claim
        is_best = claim.protocol == "each at its best"
        tuned_by = claim.tuning.best_in if is_best else ""
        if (claim.says, claim.measure, tuned_by) == recomputed[1:4]:
            return judged
    raise AssertionError(f"{recomputed.study} has no such claim: {recomputed[1:4]}")


@pytest.mark.slow
@pytest.mark.parametrize("index", range(10))
def test_a_claim_recomputed_by_other_code_has_the_same_effect(index: int) -> None:
    recomputed = recomputed_claims_of_docs()[index]
    judged = judged_row(recomputed)
    comparison = judged.comparisons[0]

    effect = recomputed.effect(comparison.level)

    difference = comparison.difference
    assert comparison.treatment.method == recomputed.treatment.method
    assert comparison.control.method == recomputed.control.method
    assert effect.mean == pytest.approx(difference.mean, rel=1e-9)
    assert effect.half_width == pytest.approx(difference.half_width(comparison.level), rel=1e-6)
    assert effect.shifts == pytest.approx(difference.shifts, rel=1e-6, abs=1e-12)
    is_at_edge = recomputed.treatment.is_at_edge or recomputed.control.is_at_edge
    assert comparison.is_at_edge == is_at_edge


def test_the_recomputation_imports_nothing_of_the_studies() -> None:
    tree = ast.parse(Path(recomputed_claims.__file__).read_text())

    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))

    assert not {name for name in imported if name.startswith("hep_")}
