"""Training in this process switched denormal numbers off for everything after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from feature_datasets import write_dataset
from training_runs import make_spec

from training.launching.launcher import launch


def test_denormal_numbers_are_back_after_training(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [20], "val": [10], "test": [5]})
    launch(make_spec(dataset, tmp_path / "out", algorithm="sgd", workers=1, epochs=1), on_progress=lambda _: None)
    assert np.float32(1e-30) * np.float32(1e-10) > 0
