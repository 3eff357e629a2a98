"""The command line with one fault in it.

python fault_child.py '{"kill_at": 4}' report --config my.yaml

    kill_at: 3               kill -9 of the process group at the third step of the first
        publication, see STEPS;
                             at 0: as soon as the new version folder is there
    at_begin: [...]          run this command once the new version folder is there figures: false
    their files stay empty wait_for: "path"         at the lock, make "path.<process id>" and wait
    until "path" is there; who then gets the
                             lock waits until another one was refused
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

#: Of publishing a version, in order: what changes files. Killed at one, the process ends before it.
STEPS: Final = (
    "before the manifest is written",
    "before the manifest gets its name",
    "before the pointer is written",
    "before the pointer gets its name",
    "after the pointer",
)
#: The first at which the new version is complete, and the first at which it is in use.
COMPLETE: Final = 3
IN_USE: Final = 5


def kill_at(index: int) -> None:
    """Kill the process group at a step of the first publication: an opened or renamed file."""
    from pipeline.runs.version_store import VersionStore

    publish, steps = VersionStore.publish, {"done": 0, "is_publishing": False}

    def step() -> None:
        steps["done"] += 1
        if steps["done"] == index:
            os.killpg(os.getpgrp(), signal.SIGKILL)
            time.sleep(60)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        is_written = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if steps["is_publishing"] and (is_written or event == "os.rename"):
            step()

    def watched_publish(self: Any, *arguments: Any) -> Any:
        steps["is_publishing"] = steps["done"] == 0
        version = publish(self, *arguments)
        if steps["is_publishing"]:
            steps["is_publishing"] = False
            step()
            assert steps["done"] == len(STEPS), (
                f"publishing has {steps['done']} steps now; name them in STEPS"
            )
        return version

    VersionStore.publish = watched_publish  # type: ignore[method-assign, assignment]
    sys.addaudithook(watch)


def after_begin(work: Callable[[], object]) -> None:
    """Do something once a new version folder is there, before the work in it."""
    from pipeline.runs.version_store import VersionStore

    create = VersionStore.create

    def create_and_more(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        work()

    VersionStore.create = create_and_more  # type: ignore[method-assign]


def wait_at_lock(path: Path) -> None:
    """Come to the lock together with another process; the loser is refused first."""
    from pipeline.errors import FolderInUseError
    from pipeline.run_folder import RunFolder

    locked, refused = RunFolder.locked, path.with_name(f"{path.name}-refused")

    def wait_for(file: Path, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.0005)

    @contextmanager
    def locked_together(self: RunFolder) -> Iterator[None]:
        path.with_name(f"{path.name}.{os.getpid()}").touch()
        wait_for(path, 120)
        try:
            with locked(self):
                wait_for(refused, 30)
                yield
        except FolderInUseError:
            refused.touch()
            raise

    RunFolder.locked = locked_together  # type: ignore[method-assign, assignment]


def main(faults: dict[str, Any]) -> None:
    if faults.get("kill_at") == 0:
        after_begin(lambda: os.killpg(os.getpgrp(), signal.SIGKILL))
    elif "kill_at" in faults:
        kill_at(faults["kill_at"])
    if "at_begin" in faults:
        after_begin(lambda: subprocess.run(faults["at_begin"], check=True, timeout=60))
    if not faults.get("figures", True):
        import pytest
        from lent_spark import without_figures

        without_figures(pytest.MonkeyPatch())
    if "wait_for" in faults:
        wait_at_lock(Path(faults["wait_for"]))
    from pipeline.cli import app

    app()


if __name__ == "__main__":
    main(json.loads(sys.argv.pop(1)))
