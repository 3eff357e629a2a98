"""What the page warns of: each doubt, and nothing where there is none."""

from __future__ import annotations

import math
from pathlib import Path

from example_versions import counters, example_versions, page_of

from pipeline.reporting.origin import BUNDLED
from pipeline.reporting.page import warnings
from pipeline.runs.manifest import Acceptance


def test_a_run_with_nothing_to_warn_of_has_no_warnings(tmp_path: Path) -> None:
    created = example_versions(tmp_path)
    assert warnings(created) == []
    assert ("ul", ["class"]) not in page_of(
        example_versions(tmp_path / "b", optional=()), tmp_path / "b"
    ).tags


def test_every_doubt_is_a_warning_and_stands_on_the_page(tmp_path: Path) -> None:
    created = example_versions(tmp_path)
    ingest, metrics = (counters(created, stage) for stage in ("ingest", "evaluate"))
    first = created["ingest"].manifest.inputs[0]
    created["ingest"].manifest.inputs.append({**first, "uuid": next(iter(BUNDLED))})
    metrics["num_events"] = 999
    created["features"].manifest.config["features"] |= {
        "convention": "sparkdltrigger",
        "ordering": "file",
    }
    for count, sample in enumerate(ingest["samples"].values(), start=3):
        sample |= {"events_of_negative_weight": count, "rejected_copy": 1}
    bad = {"sample": "qcd", "path": "a", "reason": "b", "message": "c"}
    ingest["bad_files"] += [bad, bad]
    tests = metrics["runs"]["hlf"]["train_against_test"]["top"]
    tests["QCD"]["p_value"] = 0.002
    created["train"].manifest.accepted = Acceptance.model_validate(
        {
            "when": "2026-01-01T00:00:00+00:00",
            "reasons": ["code models/networks/hlf.py changed", "train.epochs was 3"],
        }
    )
    expected = [
        "Technical sample: 1 of the 2 input files",
        "Only 999 test events",
        "Features are those of CERN's published notebooks, mistakes included.",
        "7 of the ingested events have negative weights",
        "2 events are copies of others",
        "Unreadable input files that were skipped: 2.",
        "hlf: scores of training and test events differ (p = 0.004): overtrained.",
        "train was stale and accepted as up to date: code models/networks/hlf.py changed; train.epochs was 3.",
    ]
    results = warnings(created)
    assert [
        message[: len(result)] for message, result in zip(results, expected, strict=True)
    ] == expected
    message = page_of(created, tmp_path).words
    assert all(result in message for result in results)
    tests["QCD"]["p_value"] = 0.0
    assert any("(p = 0): overtrained." in warning for warning in warnings(created))


def test_the_smallest_of_several_probabilities_is_judged_by_their_number(tmp_path: Path) -> None:
    created = example_versions(tmp_path)
    tests = counters(created, "evaluate")["runs"]["hlf"]["train_against_test"]["top"]
    # Two tests: 0.005 is what chance gives in a hundredth of all runs.
    for p_value, index in ((math.nextafter(0.005, 1), 0), (0.0049, 1)):
        tests["QCD"]["p_value"] = p_value
        assert len(warnings(created)) == index
