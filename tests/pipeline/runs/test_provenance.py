"""The version of the code that manifests record."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.runs import provenance


def test_a_local_change_may_have_a_name_of_any_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git prints names as they are with `core.quotePath: false`."""
    (tmp_path / ".git").mkdir()
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\nprintf 'h\\351ros\\n'\n")
    git.chmod(0o755)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    version = provenance.code_version()

    assert version == "commit h\N{REPLACEMENT CHARACTER}ros with local changes"
