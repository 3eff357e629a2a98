"""On real ranks too an epoch uses every event once, whatever the row groups."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from feature_datasets import write_dataset
from rank_programs import IMPLEMENTATIONS, results_of
from training_runs import make_spec, summary

from features.columns import hlf_names

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


def test_one_of_four_row_groups_was_left_out_by_three_ranks(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [40, 1, 23, 11], "val": [9], "test": [3]})
    runs = [
        make_spec(dataset, tmp_path / algorithm, algorithm=algorithm, workers=3, epochs=2)
        for algorithm in ("ar-sgd", "ad-psgd", "local-sgd")
    ]
    for run in runs:
        run.save(run.out_dir / "spec.json")
    paths = [str(run.out_dir / "spec.json") for run in runs]
    ranks = results_of(IMPLEMENTATIONS[0], 3, "used_events:noted", tmp_path / "ranks", seconds=200, runs=paths)
    (first, *_), files = hlf_names(), dataset.files("train")
    expected = Counter(value for path in files for value in pq.read_table(path)[first].to_pylist() * 2)
    for run, *of_ranks in zip(runs, *ranks, strict=True):
        assert sum(map(Counter, of_ranks), Counter()) == expected, run.train.algorithm.name
        told = summary(run.out_dir)
        assert (told["samples"], told["samples_left_out"], told["train_rows"]) == (150, 0, 75)
