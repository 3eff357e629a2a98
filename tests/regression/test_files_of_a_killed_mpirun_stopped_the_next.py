"""A killed mpirun leaves files named by its process id; one that got the same id ended: the ranks did not start."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from feature_datasets import write_dataset
from training_runs import make_spec, summary

from training.launching import launcher

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

# `exec` keeps the process id.
MPIRUN = """#!/bin/sh
echo >> {calls}
if [ "$(wc -l < {calls})" -le {times} ]; then
    mkdir -p "${{TMPDIR:-/tmp}}/ompi.$$"
    touch "${{TMPDIR:-/tmp}}/ompi.$$/pmix.$(uname -n).tool"
fi
exec {mpirun} "$@"
"""


def leaves_files(folder: Path, monkeypatch: pytest.MonkeyPatch, *, times: int) -> Path:
    """An mpirun that has the process id of a killed one in its first starts; returns the file with a line per start."""
    calls, script = folder / "calls", folder / "mpirun"
    calls.touch()
    words = {"calls": shlex.quote(str(calls)), "mpirun": shlex.quote(str(launcher.find_mpirun())), "times": times}
    script.write_text(MPIRUN.format(**words))
    script.chmod(0o755)
    monkeypatch.setattr(launcher, "find_mpirun", lambda: script)
    return calls


def test_the_ranks_are_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [40, 40], "val": [10], "test": [10]})
    calls = leaves_files(tmp_path, monkeypatch, times=1)
    losses: list[str] = []
    launcher.launch(make_spec(dataset, tmp_path / "out"), on_progress=lambda _: None, on_loss=losses.append)
    assert calls.read_text() == "\n\n"
    # No rank was lost.
    assert losses == []
    assert summary(tmp_path / "out")["epochs"] == 4


def test_once_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [40, 40], "val": [10], "test": [10]})
    calls = leaves_files(tmp_path, monkeypatch, times=9)
    with pytest.raises(launcher.LaunchError, match="the ranks did not start: status"):
        launcher.launch(make_spec(dataset, tmp_path / "out"), on_progress=lambda _: None)
    assert calls.read_text() == "\n\n"
