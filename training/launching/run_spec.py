"""What is trained in a run, as launchers write it and ranks read it. No torch."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import NamedTuple, Self

from training.errors import LaunchError
from training.settings import TrainSettings
from training.workloads.registry import WorkloadSettings, workload_from_json


class RunSpec(NamedTuple):
    """Specification of a training run; the ranks get it as JSON."""

    workload: WorkloadSettings
    """The data and the network."""
    train: TrainSettings
    """How to train."""
    out_dir: Path
    """Folder of the results."""

    def save(self, path: Path) -> None:
        """Write the spec as JSON, without `train.launcher_args`.

        Paths are relative to the folder of the file, so that a run can be moved with its data.
        """

        def relative_to_spec(folder: Path) -> str:
            return os.path.relpath(folder, path.parent)

        # The ranks do not need the launcher's arguments, and `-x NAME=value` may hold a secret.
        settings = self.train.model_dump(mode="json", exclude={"launcher_args"})
        spec = self.workload.to_json(relative_to_spec)
        spec |= {"train": settings, "out_dir": relative_to_spec(self.out_dir)}
        path.write_text(json.dumps(spec, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a spec that `save` wrote."""
        spec = json.loads(path.read_text(encoding="utf-8"))

        def resolve(relative_path: str) -> Path:
            unresolved_path = path.parent.absolute() / relative_path
            return Path(os.path.normpath(unresolved_path))

        workload = workload_from_json(spec, resolve)
        settings = TrainSettings(**spec["train"])
        return cls(workload, settings, resolve(spec["out_dir"]))


def read_runs(path: Path) -> list[tuple[int, RunSpec]]:
    """Read the runs that a launcher has listed in a file, with their numbers.

    Raises:
        LaunchError: This host does not see the file.
    """
    if not path.exists():
        raise LaunchError(
            f"{socket.gethostname()} does not see {path}: the run folder must be on storage that "
            f"all hosts share under the same path."
        )
    runs = json.loads(path.read_text(encoding="utf-8"))
    return [(run["number"], RunSpec.load(Path(run["spec"]))) for run in runs]
