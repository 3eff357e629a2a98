"""What the page warns of: each doubt alone, and nothing where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from made_manifests import counters, made_versions, page_of

from pipeline.reporting.origin import BUNDLED
from pipeline.reporting.page import warnings
from pipeline.runs.store import Version

Versions = dict[str, Version]


def test_a_run_with_nothing_to_warn_of_has_no_warnings(tmp_path: Path) -> None:
    made = made_versions(tmp_path)
    assert warnings(made) == []
    assert ("ul", ["class"]) not in page_of(made_versions(tmp_path / "b", optional=()), tmp_path / "b").tags


def _bundled(made: Versions) -> None:
    made["ingest"].manifest["inputs"].append({**made["ingest"].manifest["inputs"][0], "uuid": next(iter(BUNDLED))})


def _few(made: Versions) -> None:
    counters(made, "evaluate")["num_events"] = 999


def _published(made: Versions) -> None:
    made["features"].manifest["config"]["features"] |= {"convention": "sparkdltrigger", "ordering": "file"}


def _negative(made: Versions) -> None:
    for count, sample in enumerate(counters(made, "ingest")["samples"].values(), start=3):
        sample["events_of_negative_weight"] = count


def _bad(made: Versions) -> None:
    bad = {"sample": "qcd", "path": "a", "reason": "b", "message": "c"}
    counters(made, "ingest")["bad_files"] += [bad, bad]


def _overtrained(made: Versions, p_value: float = 0.002) -> None:
    counters(made, "evaluate")["runs"]["hlf"]["train_against_test"]["top"]["QCD"]["p_value"] = p_value


def _certain(made: Versions) -> None:
    _overtrained(made, 0.0)


def _accepted(made: Versions) -> None:
    made["train"].manifest["accepted"] = {"reasons": ["code models/networks/hlf.py changed", "train.epochs was 3"]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_bundled, "Technical sample: 1 of the 2 input files"),
        (_few, "Only 999 test events"),
        (_published, "Features are those of CERN's published notebooks, mistakes included."),
        (_negative, "7 of the ingested events have negative weights"),
        (_bad, "Unreadable input files that were skipped: 2."),
        (_overtrained, "hlf: scores of training and test events differ (p = 0.004): overtrained."),
        (_certain, "hlf: scores of training and test events differ (p = 0): overtrained."),
        (
            _accepted,
            "train was stale and accepted as up to date: code models/networks/hlf.py changed; train.epochs was 3.",
        ),
    ],
)
def test_each_warning_comes_alone_and_stands_on_the_page(
    tmp_path: Path, change: Callable[[Versions], None], expected: str
) -> None:
    made = made_versions(tmp_path)
    change(made)
    (found,) = warnings(made)
    assert found.startswith(expected)
    assert found in page_of(made, tmp_path).words


def test_the_smallest_of_several_probabilities_is_judged_by_their_number(tmp_path: Path) -> None:
    made = made_versions(tmp_path)
    # Two tests: 0.005 is what chance gives in a hundredth of all runs.
    _overtrained(made, math.nextafter(0.005, 1))
    assert warnings(made) == []
    _overtrained(made, 0.0049)
    assert len(warnings(made)) == 1
