"""A run folder whose features stage has a made-up dataset, for what comes after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feature_datasets import write_dataset
from published_by_hand import publish

from features.dataset import FeatureDataset
from pipeline.configuration.yaml_text import write_yaml
from pipeline.runs.store import StageStore


def made_features(run_dir: Path, *, rows: Mapping[str, Sequence[int]], **dataset: Any) -> FeatureDataset:
    """Publish a dataset of these row groups as the output of the features stage.

    Args:
        run_dir: The run folder.
        rows: See `feature_datasets.write_dataset`.
        dataset: Further arguments of it.
    """
    store = StageStore(run_dir, "features")
    folder = store.next_folder("0123456789")
    store.begin(folder)
    made = write_dataset(folder, rows=rows, **dataset)
    publish(run_dir, "features", folder, counters={}, inputs=[])
    return made


def config_of(folder: Path, run_dir: Path, **changes: Any) -> Path:
    """A config for this run folder; its samples do not exist."""
    names = ("qcd", "ttbar", "wjets")
    content = {
        "run_dir": str(run_dir),
        "classes": ["QCD", "ttbar", "W+jets"],
        "samples": [{"name": name, "label": label, "files": [f"{name}.root"]} for label, name in enumerate(names)],
    }
    path = folder / "config.yaml"
    path.write_text(write_yaml({**content, **changes}))
    return path
