"""Starting Spark."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext

from hep_core.integrity import DamagedOutputError
from pipeline.errors import MachineError, SparkJobError
from pipeline.machine.spark_cluster import check_shared_storage
from pipeline.machine.spark_jobs import _cause, failures_of_spark
from pipeline.machine.spark_session import zip_code


@pytest.mark.slow
def test_the_shipped_archive_is_enough_to_import_the_tasks(tmp_path: Path) -> None:
    archive = zip_code(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(archive)!r}); import ingestion.spark_job, features.spark_job;"
        "print(features.spark_job.__file__)"
    )

    completed = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"HOME": str(tmp_path)},
    )

    assert completed.stdout.startswith(str(archive))


def test_the_cause_of_a_failed_job_is_the_tasks_own_exception() -> None:
    message = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times
  File "job.py", line 3, in run
ZeroDivisionError: division by zero
\tat org.apache.spark.api.python.BasePythonRunner"""
    assert _cause(message) == "ZeroDivisionError: division by zero"
    assert "Job aborted" in _cause(
        "words\n: org.apache.spark.SparkException: Job aborted due to lost executor"
    )


def test_a_lost_executor_is_named_first() -> None:
    message = (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most "
        "recent failure: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.3 executor 2): ExecutorLostFailure (executor 2 "
        "exited caused by one of the running tasks) Reason: Command exited with code 137\nDriver stacktrace:"
    )
    assert _cause(message) == (
        "executor 2 on 10.0.0.3 was lost: Command exited with code 137 (killed, often for memory)"
    )


@pytest.mark.spark
def test_a_local_spark_leaves_the_environment_as_it_was(spark: SparkContext) -> None:
    # Executors of a later cluster would look for the driver at the address of this one.
    assert spark.master.startswith("local")
    assert "SPARK_LOCAL_IP" not in os.environ
    assert "PYSPARK_PYTHON" not in os.environ


def test_the_cause_is_the_last_of_a_chain_and_an_error_of_our_own_is_no_fault_of_spark() -> None:
    message = """: org.apache.spark.SparkException: Job aborted due to stage failure
Traceback (most recent call last):
AttributeError: 'SelectedEvents' object has no attribute 'branches'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
features.errors.FeatureError: the feature 'vertices' (plugin my.py) fails in line 6

\tat org.apache.spark.api.python.BasePythonRunner
Caused by: org.apache.spark.api.python.PythonException
AttributeError: 'SelectedEvents' object has no attribute 'branches'"""
    assert (
        _cause(message)
        == "features.errors.FeatureError: the feature 'vertices' (plugin my.py) fails in line 6"
    )


def test_a_damaged_file_with_a_long_path_is_named_whole() -> None:
    damage = DamagedOutputError(
        "/data" + "/a long name of a folder" * 30 + "/part.parquet", "reading it fails"
    )
    message = f": org.apache.spark.SparkException: aborted\ningestion.integrity.DamagedOutputError: {damage}"
    with pytest.raises(DamagedOutputError) as caught, failures_of_spark("local[1]"):
        raise Py4JError(message)
    assert caught.value.path == damage.path


def test_a_long_cause_is_cut_where_it_is_shown() -> None:
    with pytest.raises(SparkJobError) as caught, failures_of_spark("local[1]"):
        raise Py4JError("ValueError: " + "x" * 5000)
    assert len(str(caught.value)) < 1000


@pytest.mark.spark
def test_shared_storage_passes_and_nothing_stays(spark: SparkContext, tmp_path: Path) -> None:
    check_shared_storage(spark, tmp_path, [str(Path(__file__)), "https://host/file.root"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_an_input_that_executors_do_not_see_is_named(spark: SparkContext, tmp_path: Path) -> None:
    missing = tmp_path / "data" / "file.root"
    with pytest.raises(MachineError, match=f"{socket.gethostname()} does not see {missing}"):
        check_shared_storage(spark, tmp_path, [str(missing)])


@pytest.mark.spark
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs the rights of root"
)
@pytest.mark.parametrize(
    ("mount", "message"),
    [("mount -t tmpfs tmpfs", "does not see"), ("mount -o bind,ro {folder}", "cannot write into")],
)
def test_a_run_folder_on_storage_of_the_driver_alone_is_refused(
    spark: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, message: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    python = tmp_path / "python"
    # Workers of Spark for which another disk is mounted there.
    command = f'{mount.format(folder=folder)} {folder} && exec {sys.executable} "$@"'
    python.write_text(f"#!/bin/sh\nexec unshare --mount sh -c '{command}' worker \"$@\"\n")
    python.chmod(0o755)
    monkeypatch.setattr(spark, "pythonExec", str(python))
    with pytest.raises(
        MachineError, match=rf"do not share the storage.*{message} {folder}.*Put run_dir"
    ):
        check_shared_storage(spark, folder)
    assert list(folder.iterdir()) == []
