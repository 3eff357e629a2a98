"""Versions of stages that nothing computed, with manifests as the runner writes them."""

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

#: What a training says of itself, as far as others read it.
TRAINING_SUMMARY: Final = {
    "best_val_loss": 0.3,
    "best_val_accuracy": 0.9,
    "best_epoch": 1,
    "epochs": 2,
    "seconds": 1.0,
    "created": "2026-01-01T00:00:00+00:00",
}


def example_manifest(stage: str, **changes: Any) -> dict[str, Any]:
    """What the runner says of a version that was made from nothing."""
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
    """A version of a stage with a manifest of its own, which no store has published."""
    document = {"manifest_version": 3, "outputs": [], **example_manifest(stage, **changes)}
    return Version(folder.name, folder, StageManifest.model_validate(document))


def example_model_manifest(network: str, **changes: Any) -> dict[str, Any]:
    """What `promote` says of a model."""
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
    """Publish a version that was made from those in use of the stages that it reads.

    `folder`: with its files; None: a new one. `content`: of its files; another makes what is made
    from it stale.
    """
    store = StageStore(run_dir, stage)
    if folder is None:
        folder = store.next_folder("00" * 8)
        store.create(folder)
    for pattern in (
        () if text == "" else ("events/a", "dataset.json", "hlf/model/a", "metrics.json")
    ):
        (folder / pattern).parent.mkdir(parents=True, exist_ok=True)
        (folder / pattern).write_text(text)
    created = {name: StageStore(run_dir, name).current() for name in STAGE_OF[stage].reads}
    actual = {name: version for name, version in created.items() if version is not None}
    inputs = {
        name: Input(name, content_read(STAGE_OF[stage], version))
        for name, version in actual.items()
    }
    expected = {
        "counters": {"networks": {"hlf": TRAINING_SUMMARY}, "further": {}}
        if stage == "train"
        else {},
        "fingerprint": asdict(Fingerprint(inputs, {}, {})),
        "upstream": {name: version.name for name, version in actual.items()},
    }
    return store.commit(folder, example_manifest(stage, **expected | manifest))


def publish_features(
    run_dir: Path,
    *,
    rows: Mapping[str, Sequence[int]],
    config: Mapping[str, Any] | None = None,
    **dataset: Any,
) -> FeatureDataset:
    """Publish a dataset of `feature_datasets.write_dataset`, whose arguments these are, as the output of `features`."""
    store = StageStore(run_dir, "features")
    folder = store.next_folder("0123456789")
    store.create(folder)
    created = write_dataset(folder, rows=rows, **dataset)
    publish(run_dir, "features", folder, config=config or {})
    return created


def record_as_written(store: StageStore, version: Version) -> None:
    """Name the files of a version in its manifest as they are now, as if they had been published so."""
    is_stage = isinstance(version.manifest, StageManifest)
    files = written_files(
        version.folder,
        without={"manifest.json", own_folders.MARKER},
        earlier=EarlierFiles(version.folder, {}),
        volatile=STAGE_OF[version.writer].volatile if is_stage else (),
    )
    store.update_manifest(version, outputs=[file._asdict() for file in files])
