"""Runs stages in this process, without a JVM; the program kills them at requests to storage.

`stages_in_process.py CONFIG FOLDER` reads lines `STAGE REQUEST`. It runs each stage in a process of
its own, and prints the number of its requests or how it ended. Such a process ends by kill -9 at
the given request, where 0 is the first: the request is sent if its number is odd, and the answer
never read. At -1 it is not killed.
"""

from __future__ import annotations

import os
import signal
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from spark_in_process import WITHOUT_SPARK

from features import spark_job
from pipeline import run_folder
from pipeline.config import load_config
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.stages.features import Features
from pipeline.stages.ingest import Ingest


def without_spark(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Run ingest and features in this process; copies of remote files go to a folder."""
    patch.setattr(Ingest, "needs", ())
    patch.setattr(Features, "needs", ())
    patch.setattr(run_folder, "SparkProvider", lambda *_: WITHOUT_SPARK)
    patch.setattr(spark_job, "task_folder", lambda _: folder)


def run_stages(config: Path, *stages: str, **options: Any) -> str:
    """Run stages; returns what is printed."""
    output = StringIO()
    Runner(RunFolder(load_config(str(config)), Console(file=output, width=1000))).run(
        stages, **options
    )
    return output.getvalue()


def _killed_at(index: int) -> list[int]:
    """Kill this process at a request; returns the number of requests until now."""
    # Not above: it starts a thread, and this process forks.
    from s3fs import S3FileSystem

    requests, call = [0], S3FileSystem._call_s3

    async def counted(self: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if requests[0] == index and index % 2 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await call(self, method, *args, **kwargs)
        if requests[0] == index:
            os.kill(os.getpid(), signal.SIGKILL)
        requests[0] += 1
        return answer

    S3FileSystem._call_s3 = counted
    return requests


def main(config: Path, folder: Path) -> None:
    without_spark(pytest.MonkeyPatch(), folder)
    for line in sys.stdin:
        stage, index = line.split()
        child = os.fork()
        if child == 0:
            requests = _killed_at(int(index))
            run_stages(config, stage, force=True)
            _say(f"done {requests[0]}")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            _say(f"ended {os.waitstatus_to_exitcode(status)}")


def _say(message: str) -> None:
    sys.stdout.write(f"{message}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
