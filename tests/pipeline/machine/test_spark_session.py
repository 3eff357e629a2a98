"""Starting Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext

from pipeline.machine.spark_session import _cause, zip_code


@pytest.mark.slow
def test_the_shipped_archive_is_enough_to_import_the_tasks(tmp_path: Path) -> None:
    archive = zip_code(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(archive)!r}); import ingestion.spark_job, features.spark_job;"
        "print(features.spark_job.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"HOME": str(tmp_path)},
    )
    assert done.stdout.startswith(str(archive))


def test_the_cause_of_a_failed_job_is_the_tasks_own_exception() -> None:
    words = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times
  File "job.py", line 3, in run
ZeroDivisionError: division by zero
\tat org.apache.spark.api.python.BasePythonRunner"""
    assert _cause(words) == "ZeroDivisionError: division by zero"
    assert "Job aborted" in _cause("words\n: org.apache.spark.SparkException: Job aborted due to lost executor")


@pytest.mark.spark
def test_a_local_spark_leaves_the_environment_as_it_was(spark: SparkContext) -> None:
    # SPARK_LOCAL_IP stayed at 127.0.0.1, and executors of a later cluster looked for the driver on their own hosts.
    assert spark.master.startswith("local")
    assert "SPARK_LOCAL_IP" not in os.environ
    assert "PYSPARK_PYTHON" not in os.environ


def test_the_cause_is_the_last_of_a_chain_and_an_error_of_our_own_is_no_fault_of_spark() -> None:
    words = """: org.apache.spark.SparkException: Job aborted due to stage failure
Traceback (most recent call last):
AttributeError: 'SelectedEvents' object has no attribute 'branches'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
features.errors.FeatureError: the feature 'vertices' (plugin my.py) fails in line 6

\tat org.apache.spark.api.python.BasePythonRunner
Caused by: org.apache.spark.api.python.PythonException
AttributeError: 'SelectedEvents' object has no attribute 'branches'"""
    assert _cause(words) == "features.errors.FeatureError: the feature 'vertices' (plugin my.py) fails in line 6"
