"""Executors with storage of their own are found before a job fails at the first file."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext

from pipeline.errors import MachineError
from pipeline.machine.shared_storage import refuse_unshared

pytestmark = pytest.mark.spark


def test_shared_storage_passes_and_nothing_stays(spark: SparkContext, tmp_path: Path) -> None:
    refuse_unshared(spark, tmp_path, [str(Path(__file__)), "https://host/file.root"])
    assert list(tmp_path.iterdir()) == []


def test_an_input_that_executors_do_not_see_is_named(spark: SparkContext, tmp_path: Path) -> None:
    missing = tmp_path / "data" / "file.root"
    with pytest.raises(MachineError, match=f"{socket.gethostname()} does not see {missing}"):
        refuse_unshared(spark, tmp_path, [str(missing)])


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs the rights of root")
@pytest.mark.parametrize(
    ("mount", "told"),
    [("mount -t tmpfs tmpfs", "does not see"), ("mount -o bind,ro {folder}", "cannot write into")],
)
def test_run_folders_on_storage_of_the_driver_ended_in_a_file_not_found_error(
    spark: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, told: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    python = tmp_path / "python"
    # Workers of Spark for which another disk is mounted there.
    command = f'{mount.format(folder=folder)} {folder} && exec {sys.executable} "$@"'
    python.write_text(f"#!/bin/sh\nexec unshare --mount sh -c '{command}' worker \"$@\"\n")
    python.chmod(0o755)
    monkeypatch.setattr(spark, "pythonExec", str(python))
    with pytest.raises(MachineError, match=rf"do not share the storage.*{told} {folder}.*Put run_dir"):
        refuse_unshared(spark, folder)
    assert list(folder.iterdir()) == []
