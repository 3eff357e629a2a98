"""Running the command line as users do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.configuration.yaml_text import write_yaml
from pipeline.runs.store import StageStore
from pipeline.runs.version import Version

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
#: Those that `run` includes with `small_config`: no network is to be what a grid search found.
STAGES = ("ingest", "features", "train", "evaluate", "export", "report")

#: Half of the processor time of a JVM that runs one stage goes into compiling and collecting in
#: parallel.
BRIEF_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_CLASSES = Path(sys.prefix, "spark.jsa")
if _CLASSES.exists():
    # `class_archive` made it; a JVM that it does not fit goes without.
    BRIEF_JVM += f" -XX:SharedArchiveFile={_CLASSES} -Xlog:cds=off -Xlog:cds+dynamic=off"
#: A cluster on this machine, with two executors in processes of their own.
CLUSTER = {
    "master": "local-cluster[2,1,1024]",
    "conf": {"spark.executor.extraJavaOptions": BRIEF_JVM},
}


def small_config(folder: Path, data: Path | str, **changes: Any) -> Path:
    """Write a config that runs in seconds, of the files `<sample>*.root` of a folder or address."""
    names = ("qcd", "ttbar", "wjets")
    samples = []
    for label, name in enumerate(names):
        samples.append({"name": name, "label": label, "files": [f"{data}/{name}*.root"]})
    document = {
        "run_dir": str(folder / "run"),
        "classes": ["QCD", "ttbar", "W+jets"],
        "samples": samples,
        "features": {"feed_workers": 2},
        "train": {"workers": 2, "epochs": 3, "batch_size": 16},
        "evaluate": {"reference": False},
        # After three epochs a network is no good.
        "promote": {"at_least": 0},
        "spark": {"master": "local[2]"},
    }
    path = folder / "config.yaml"
    path.write_text(write_yaml({**document, **changes}))
    return path


def pipeline(
    *arguments: str | Path, figures: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `python -m pipeline ...` with options of `subprocess.run`; figures may stay empty."""
    program = (
        ["-m", "pipeline"]
        if figures
        else [str(Path(__file__).with_name("fault_child.py")), '{"figures": false}']
    )
    command = [sys.executable, *program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def invoke(*arguments: str | Path) -> Any:
    """Run a command that starts no Spark in this process; returns its output and exit code."""
    # Most tests ask for no command.
    from typer.testing import CliRunner

    from pipeline.cli import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def versions(run_dir: Path) -> dict[str, str | None]:
    """The version that each stage's pointer names."""
    actual = {}
    for stage in STAGES:
        pointer = run_dir / stage / "current.json"
        actual[stage] = json.loads(pointer.read_text())["version"] if pointer.exists() else None
    return actual


def in_use(run_dir: Path, stage: str) -> Version:
    """The version that is in use."""
    version = StageStore(run_dir, stage).current()
    assert version is not None, f"there is no {stage} in {run_dir}"
    return version


def version_of(run_dir: Path, stage: str) -> Path:
    """Its folder."""
    return in_use(run_dir, stage).folder


def version_folders(run_dir: Path, stages: Sequence[str] = STAGES) -> list[str]:
    """All version folders there are, finished or not."""
    folders = []
    for stage in stages:
        paths = (run_dir / stage).glob("*")
        folders += [f"{stage}/{path.name}" for path in paths if path.is_dir()]
    return sorted(folders)
