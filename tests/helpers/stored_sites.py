"""Run folders on disk and on an S3 server, over the same input files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from analyses import write_sample_file
from event_rows import distinct, event_row, lepton
from rich.console import Console
from s3_server import Server

from pipeline.config import load_config
from pipeline.configuration.yaml_text import write_yaml
from pipeline.run_folder import RunFolder
from pipeline.runs.version import Version

NAMES: Final = ("qcd", "ttbar", "wjets")
CLASSES: Final = ["QCD", "ttbar", "W+jets"]
STAGES: Final = ("ingest", "features")


class Site:
    """Input files, and run folders over them, on disk or on the server."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server
        self.storage = f"s3://bucket/{folder.name}"
        (folder / "data").mkdir()
        for name in NAMES:
            self.arrive(f"{name}_0")

    def arrive(self, name: str) -> None:
        """Write a file with events of its own; its UUID, and so the splits, are always the same."""
        sample, index = name.split("_")
        offset = 100 * NAMES.index(sample) + 1000 * int(index)
        events = []
        for n in range(40):
            electron = lepton(30.0 + n, 0.1, 0)
            events.append(event_row(met=float(offset + n), electrons=[electron]))
        write_sample_file(self.folder / "data" / f"{name}.root", distinct(events))

    def config(self, name: str, storage: str | None = None, **changes: Any) -> Path:
        """A config with the run folder `name`."""
        samples = []
        for label, sample in enumerate(NAMES):
            files = [str(self.folder / "data" / f"{sample}_*.root")]
            samples.append({"name": sample, "label": label, "files": files})
        document = {
            "run_dir": str(self.folder / name),
            "storage": storage,
            "samples": samples,
            "classes": CLASSES,
            "features": {"feed_workers": 2},
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(write_yaml(document | changes))
        return path

    def objects(self) -> set[str]:
        """Names of all objects of the storage."""
        return self.server.objects(self.storage.removeprefix("s3://"))


def folder_of(config: Path) -> RunFolder:
    return RunFolder(load_config(str(config)), Console(quiet=True))


def current(config: Path, stage: str) -> Version:
    version = folder_of(config).store(stage).current()
    assert version is not None
    return version


def contents(config: Path) -> dict[str, str]:
    """Digests of the content of all files of both stages."""
    digests = {}
    for stage in STAGES:
        for file in current(config, stage).files:
            # Its content names the run folder.
            digest = "" if file.path == "dataset.json" else file.content
            digests[f"{stage}/{file.path}"] = digest
    return digests


def needed_objects(config: Path) -> set[str]:
    """Objects that the versions in use need: files, kernel outputs, and the claim of each stage."""
    storage = load_config(str(config)).storage
    objects: set[str] = set()
    for stage in STAGES:
        version = current(config, stage)
        files = [str(file.location(version.folder)) for file in version.files if file.lies_in]
        for output in version.manifest.counters.get("kernel_outputs", []):
            name = Path(output["name"]).with_suffix(".arrow")
            files.append(f"{storage}/features/kernels/{output['lies_in']}/{name}")
        objects |= {path.removeprefix(f"{storage}/") for path in files}
        objects.add(f"{stage}/made-by-hep-pipeline")
    return objects
