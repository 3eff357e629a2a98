"""Warnings of the page about its numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from example_versions import counters, example_versions, page_of

from pipeline.reporting.origin import BUNDLED
from pipeline.reporting.page_warnings import warnings
from pipeline.runs.manifest import Acceptance


def test_a_run_without_doubts_has_no_warnings(tmp_path: Path) -> None:
    versions = example_versions(tmp_path, optional=())

    assert warnings(versions) == []
    assert ("ul", ["class"]) not in page_of(versions, tmp_path).tags


def test_every_doubt_is_a_warning_on_the_page(tmp_path: Path) -> None:
    versions = example_versions(tmp_path)
    ingest, metrics = counters(versions, "ingest"), counters(versions, "evaluate")
    input_files = versions["ingest"].manifest.inputs
    input_files.append({**input_files[0], "uuid": next(iter(BUNDLED))})
    metrics["num_events"] = 999
    versions["features"].manifest.config["features"] |= {
        "convention": "sparkdltrigger",
        "ordering": "file",
    }
    for num_negative, sample in enumerate(ingest["samples"].values(), start=3):
        sample |= {"events_of_negative_weight": num_negative, "rejected_copy": 1}
    bad_file = {"sample": "qcd", "path": "a", "reason": "b", "message": "c"}
    ingest["bad_files"] += [bad_file, bad_file]
    metrics["runs"]["hlf"]["train_against_test"]["top"]["QCD"]["p_value"] = 0.002
    reasons = ["code models/networks/hlf.py changed", "train.epochs was 3"]
    versions["train"].manifest.accepted = Acceptance.model_validate(
        {"when": "2026-01-01T00:00:00+00:00", "reasons": reasons}
    )

    sentences = warnings(versions)

    starts = [
        "Technical sample: 1 of the 2 input files",
        "Only 999 test events",
        "Features are those of CERN's published notebooks, mistakes included.",
        "7 of the ingested events have negative weights",
        "2 events are copies of others",
        "Unreadable input files that were skipped: 2.",
        "hlf: scores of training and test events differ (p = 0.004): overtrained.",
        (
            "train was stale and accepted as up to date: code models/networks/hlf.py changed; "
            "train.epochs was 3."
        ),
    ]
    page_text = page_of(versions, tmp_path).text
    for sentence, start in zip(sentences, starts, strict=True):
        assert sentence.startswith(start)
        assert sentence in page_text


@pytest.mark.parametrize(
    ("p_value", "num_warnings"), [(math.nextafter(0.005, 1), 0), (0.0049, 1), (0.0, 1)]
)
def test_the_smallest_of_several_probabilities_is_judged_by_their_number(
    tmp_path: Path, p_value: float, num_warnings: int
) -> None:
    versions = example_versions(tmp_path)
    tests = counters(versions, "evaluate")["runs"]["hlf"]["train_against_test"]["top"]
    # Of two tests, the smaller probability is below 0.005 by chance in a hundredth of all runs.
    tests["QCD"]["p_value"] = p_value

    assert len(warnings(versions)) == num_warnings
