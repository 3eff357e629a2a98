"""Reading many epochs takes no more memory than reading a few."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from feature_datasets import write_dataset

#: Prints by how many MB the process grows from the second third of the epochs to the last; at the
#: end, an epoch is still under way.
CHILD = """
import sys
from pathlib import Path
import psutil, torch
from features.dataset import FeatureDataset
from training.readers.reader import open_reader
from training.readers.sharding import plan_epoch, assign_rows

folder, kind, epochs = sys.argv[1:]
torch.set_num_threads(1)
dataset = FeatureDataset.load(Path(folder))
reader = open_reader(dataset, ["hlf", "particles", "num_particles"], kind=kind, seed=1)
rows = [group.rows for group in dataset.splits["train"]]
resident = []
for epoch in range(int(epochs)):
    plan = plan_epoch(rows, world_size=1, batch_size=32, seed=1, epoch=epoch)
    given_up = reader.train_batches(assign_rows(plan, rank=0, epoch=epoch))
    next(given_up)
    for _ in reader.train_batches(assign_rows(plan, rank=0, epoch=epoch)):
        pass
    for _ in reader.val_batches(rank=0, world_size=1):
        pass
    resident.append(psutil.Process().memory_info().rss / 1e6)
third = len(resident) // 3
print(min(resident[2 * third :]) - min(resident[third : 2 * third]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("reader_kind", ["petastorm", "arrow"])
def test_memory_does_not_grow_over_epochs(tmp_path: Path, reader_kind: str) -> None:
    write_dataset(
        tmp_path / "data", rows={"train": [64, 64], "val": [32], "test": [1]}, max_particles=801
    )
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        CHILD,
        str(tmp_path / "data"),
        reader_kind,
        "30",
    ]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert completed.returncode == 0, completed.stderr
    # One row group of each epoch that is not let go would be 10 x 4 MB.
    assert float(completed.stdout) < 15
