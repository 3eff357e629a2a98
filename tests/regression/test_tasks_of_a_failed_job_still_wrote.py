"""A Spark job ends with the first task that fails. Others still wrote into the folder that the stage then removed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark import SparkContext

from pipeline.errors import SparkJobError
from pipeline.machine.spark_session import watched


@pytest.mark.spark
def test_no_task_writes_after_the_failure_is_known(spark: SparkContext, tmp_path: Path) -> None:
    written, stop = tmp_path / "written", tmp_path / "stop"

    def task(number: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not stop.exists():
            if number == 0 and written.exists():
                raise RuntimeError("one task fails")
            if number == 1:
                written.write_text("a part")
            time.sleep(0.01)

    try:
        with pytest.raises(SparkJobError, match="one task fails"), watched(lambda *_: None, 2, lambda: 0):
            spark.parallelize([0, 1], 2).foreach(task)
        written.unlink()
        time.sleep(1)
        assert not written.exists()
    finally:
        stop.touch()
