"""Why a stage is stale."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import fingerprint
from pipeline.fingerprint import Fingerprint, Input, code_digests, reasons_to_run

BASE = Fingerprint({"u1": Input("a.root", "1"), "u2": Input("b.root", "2")}, {"x.a": 1, "x.b": [1]}, {"features": "f"})


def test_nothing_changed_gives_no_reason() -> None:
    assert reasons_to_run(BASE, BASE) == []


def test_each_kind_of_change_has_its_words() -> None:
    now = Fingerprint({"u2": Input("b.root", "9"), "u3": Input("c.root", "3")}, {"x.a": 2, "x.c": 0}, {"features": "g"})
    assert reasons_to_run(BASE, now) == [
        "input added: c.root",
        "input removed: a.root",
        "input changed: b.root",
        "config x.a changed (1 -> 2)",
        "config x.b changed ([1] -> not set)",
        "config x.c changed (not set -> 0)",
        "code of features changed",
    ]


def test_a_moved_file_changes_nothing() -> None:
    moved = BASE._replace(inputs={**BASE.inputs, "u1": Input("elsewhere/a.root", "1")})
    assert reasons_to_run(BASE, moved) == []
    assert BASE.digest == moved.digest


def test_it_survives_json() -> None:
    assert Fingerprint.from_json(BASE.to_json()) == BASE


def test_the_digest_is_the_same_under_another_hash_seed() -> None:
    code = (
        "from pipeline.fingerprint import *;"
        "print(Fingerprint({'u1': Input('a.root', '1')}, {'b': 1, 'a': {'z': 1, 'y': 2}}, {}).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
            cwd=fingerprint.ROOT,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(digests) == 1


def test_code_digests_see_source_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "ROOT", tmp_path)
    package = tmp_path / "features"
    package.mkdir()
    (package / "a.py").write_text("x = 1\n")
    before = code_digests(["features"])
    (package / "notes.txt").write_text("not code")
    (package / "a.pyc").write_text("not source")
    assert code_digests(["features"]) == before
    (package / "a.py").write_text("x = 2\n")
    assert code_digests(["features"]) != before
    (package / "a.py").rename(package / "b.py")
    (package / "b.py").write_text("x = 1\n")
    assert code_digests(["features"]) != before
