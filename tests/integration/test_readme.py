"""The README's commands and numbers: the demo config, run from the checkout as a newcomer does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import SAMPLES, STAGES, pipeline

pytestmark = [pytest.mark.minutes, pytest.mark.end_to_end, pytest.mark.timeout(900)]

CHECKOUT = SAMPLES.parent
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def counters(tmp_path: Path) -> dict[str, Any]:
    run_dir = tmp_path / "readme"
    done = pipeline("run", "--set", f"run_dir={run_dir}", cwd=CHECKOUT, timeout=800)
    assert done.returncode == 0, done.stderr
    return {
        stage: json.loads(next(run_dir.glob(f"{stage}/0001-*/manifest.json")).read_text(encoding="utf-8"))["counters"]
        for stage in STAGES
    }


def test_numbers_in_the_readme_are_those_of_the_demo(counters: dict[str, Any]) -> None:
    entries = sum(each["entries"] for each in counters["ingest"]["samples"].values())
    selected = sum(each["selected"] for each in counters["features"]["samples"].values())
    tested = counters["evaluate"]["num_events"]
    words = " ".join(README.split())
    assert f"has {entries} simulated events; {selected} pass the selection, {tested} are tested on" in words
    # Within their errors: other processors round otherwise, and the grid search may choose other layers there.
    line = re.search(r"accuracy (hlf .*)", README)
    assert line
    shown = {name: float(value) for name, value in re.findall(r"([\w-]+) ([\d.]+) \+-", line[1])}
    runs = {name: run["accuracy"] for name, run in counters["evaluate"]["runs"].items()}
    assert shown.keys() == runs.keys()
    for name, accuracy in runs.items():
        assert accuracy["value"] == pytest.approx(shown[name], abs=accuracy["error"])
    found = re.search(r"Accuracy ([\d.]+) ± ([\d.]+); AUC ((?:[\d.]+ ± [\d.]+ \([^)]+\)(?:, )?)+)", words)
    assert found
    assert runs["hlf"]["value"] == pytest.approx(float(found[1]), abs=runs["hlf"]["error"])
    areas = re.findall(r"([\d.]+) ± ([\d.]+) \(([^)]+)\)", found[3])
    assert len(areas) == 3
    for value, error, name in areas:
        area = counters["evaluate"]["runs"]["hlf"]["auc"][name]
        assert area["value"] == pytest.approx(float(value), abs=area["error"])
        assert area["error"] == pytest.approx(float(error), rel=0.5, abs=0.003)
