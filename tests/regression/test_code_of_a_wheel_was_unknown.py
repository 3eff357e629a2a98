"""Without a checkout, as in a container, a manifest said `unknown (no git checkout)`, although the release is known."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

import pytest

from pipeline.runs import provenance


@pytest.mark.parametrize("has_git", [True, False])
def test_without_a_checkout_the_code_is_that_of_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_git: bool
) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    if not has_git:
        monkeypatch.setattr(shutil, "which", lambda _: None)
    assert provenance.code_version() == f"release {metadata.version('hep-pipeline')}"


def test_a_checkout_without_a_commit_is_of_a_release_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.code_version() == f"release {metadata.version('hep-pipeline')}"
