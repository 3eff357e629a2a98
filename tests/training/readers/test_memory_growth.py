"""Reading many epochs takes no more memory than reading a few."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from feature_datasets import write_dataset

#: Prints by how many MB the process grows from the second third of the epochs to the last; at the
#: end, an epoch is still under way.
READ_EPOCHS = """
import sys
from pathlib import Path

import psutil, torch
from features.dataset import FeatureDataset
from training.readers.reader import open_reader
from training.readers.sharding import plan_epoch, assign_rows

folder, reader_kind, num_epochs = sys.argv[1:]
torch.set_num_threads(1)
dataset = FeatureDataset.load(Path(folder))
inputs = ["hlf", "particles", "num_particles"]
reader = open_reader(dataset, inputs, kind=reader_kind, seed=1)
group_rows = [group.rows for group in dataset.splits["train"]]
megabytes = []
for epoch in range(int(num_epochs)):
    plan = plan_epoch(group_rows, world_size=1, batch_size=32, seed=1, epoch=epoch)
    assignment = assign_rows(plan, rank=0, epoch=epoch)
    abandoned_batches = reader.train_batches(assignment)
    next(abandoned_batches)
    for _ in reader.train_batches(assignment):
        pass
    for _ in reader.val_batches(rank=0, world_size=1):
        pass
    megabytes.append(psutil.Process().memory_info().rss / 1e6)
third = len(megabytes) // 3
print(min(megabytes[2 * third :]) - min(megabytes[third : 2 * third]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("reader_kind", ["petastorm", "arrow"])
def test_memory_does_not_grow_over_epochs(tmp_path: Path, reader_kind: str) -> None:
    rows = {"train": [64, 64], "val": [32], "test": [1]}
    write_dataset(tmp_path / "data", rows=rows, max_particles=801)
    program = [sys.executable, "-W", "ignore", "-c", READ_EPOCHS]
    arguments = [str(tmp_path / "data"), reader_kind, "30"]

    completed = subprocess.run(
        [*program, *arguments], capture_output=True, text=True, timeout=240, check=False
    )

    assert completed.returncode == 0, completed.stderr
    # One row group of each epoch that is not let go would be 10 x 4 MB.
    assert float(completed.stdout) < 15
