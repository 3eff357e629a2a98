"""Versions of stages that no stage computed, with manifests as the runner writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from feature_datasets import write_dataset

from features.dataset import FeatureDataset
from pipeline.runs import own_folders
from pipeline.runs.fingerprint import Fingerprint, Input
from pipeline.runs.manifest import StageManifest
from pipeline.runs.outputs import EarlierFiles, written_files
from pipeline.runs.store import StageStore
from pipeline.runs.version import Version
from pipeline.stages.table import STAGE_OF, content_read

#: The summary of a training, with the keys that other parts read.
TRAINING_SUMMARY: Final = {
    "best_val_loss": 0.3,
    "best_val_accuracy": 0.9,
    "best_epoch": 1,
    "epochs": 2,
    "seconds": 1.0,
    "created": "2026-01-01T00:00:00+00:00",
}


def example_manifest(stage: str, **changes: Any) -> dict[str, Any]:
    """The manifest of a version without inputs, as the runner writes it."""
    return {
        "stage": stage,
        "created": "2026-01-01T00:00:00+00:00",
        "seconds": 1.0,
        "command": [],
        "fingerprint": asdict(Fingerprint({}, {}, {})),
        "upstream": {},
        "config": {},
        "code_version": "commit abc",
        "packages": {},
        "inputs": [],
        "counters": {},
        "checks": [],
        **changes,
    }


def example_version(stage: str, folder: Path, **changes: Any) -> Version:
    """A version of a stage that no store has published."""
    manifest = {"manifest_version": 3, "outputs": [], **example_manifest(stage, **changes)}
    return Version(folder.name, folder, StageManifest.model_validate(manifest))


def example_model_manifest(network: str, **changes: Any) -> dict[str, Any]:
    """The manifest of a model, as `promote` writes it."""
    return {
        "network": network,
        "train": "0001-00000000",
        "promoted": "2026-01-01T00:00:00+00:00",
        "improvement": None,
        "code_version": "commit abc",
        **changes,
    }


def publish(
    run_dir: Path, stage: str, folder: Path | None = None, *, text: str = "", **manifest: Any
) -> Version:
    """Publish a version that reads the versions in use of earlier stages.

    Args:
        run_dir: The run folder.
        stage: Its name.
        folder: The folder with the files of the version; None: a new one.
        text: The text of the files that later stages read; another text makes them stale.
        manifest: Changes of the manifest.
    """
    store = StageStore(run_dir, stage)
    if folder is None:
        folder = store.next_folder("00" * 8)
        store.create(folder)
    if text:
        for name in ("events/a", "dataset.json", "hlf/model/a", "metrics.json"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    inputs = {}
    upstream = {}
    for name in STAGE_OF[stage].reads:
        version = StageStore(run_dir, name).current()
        if version is not None:
            inputs[name] = Input(name, content_read(STAGE_OF[stage], version))
            upstream[name] = version.name
    counters: dict[str, Any] = {}
    if stage == "train":
        counters = {"networks": {"hlf": TRAINING_SUMMARY}, "further": {}}
    defaults = {
        "counters": counters,
        "fingerprint": asdict(Fingerprint(inputs, {}, {})),
        "upstream": upstream,
    }
    return store.commit(folder, example_manifest(stage, **(defaults | manifest)))


def publish_features(
    run_dir: Path,
    *,
    rows: Mapping[str, Sequence[int]],
    config: Mapping[str, Any] | None = None,
    **dataset: Any,
) -> FeatureDataset:
    """Publish a dataset as the output of `features`; see `feature_datasets.write_dataset`."""
    store = StageStore(run_dir, "features")
    folder = store.next_folder("0123456789")
    store.create(folder)
    published = write_dataset(folder, rows=rows, **dataset)
    publish(run_dir, "features", folder, config=config or {})
    return published


def record_as_written(store: StageStore, version: Version) -> None:
    """Let the manifest of a version name its files as they are now."""
    is_stage = isinstance(version.manifest, StageManifest)
    files = written_files(
        version.folder,
        without={"manifest.json", own_folders.MARKER},
        earlier=EarlierFiles(version.folder, {}),
        volatile=STAGE_OF[version.writer].volatile if is_stage else (),
    )
    store.update_manifest(version, outputs=[file._asdict() for file in files])
