"""Training that starts from an existing model takes over its weights and its scaling only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from feature_datasets import write_dataset
from training_runs import flat_weights, make_spec

from features.dataset import FeatureDataset
from models.saved_model import load_model
from training.errors import WarmStartError
from training.launching.rank import RunSpec, train
from training.transports.transport import Transport


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("old") / "set", rows={"train": [40], "val": [20], "test": [5]})


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    rows = {"train": [60, 60], "val": [20], "test": [5]}
    return write_dataset(tmp_path_factory.mktemp("new") / "set", rows=rows, seed=7)


def run(dataset: FeatureDataset, out: Path, start_from: Path | None = None, **settings: Any) -> Path:
    chosen = {"algorithm": "sgd", "workers": 1, "epochs": 2} | settings
    train(make_spec(dataset, out, start_from=start_from, **chosen), Transport(), on_progress=None)
    return out


@pytest.fixture(scope="module")
def first(old: FeatureDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(old, tmp_path_factory.mktemp("first") / "run", epochs=5)


def test_it_begins_with_the_weights_and_keeps_the_scaling(first: Path, new: FeatureDataset, tmp_path: Path) -> None:
    # A learning rate that moves nothing shows the initial weights, for any seed.
    later = run(new, tmp_path / "out", first / "model", learning_rate=1e-12, seed=99)
    torch.testing.assert_close(torch.tensor(flat_weights(later)), torch.tensor(flat_weights(first)))
    scalers = [load_model(folder / "model")[1].scalers for folder in (first, later)]
    assert scalers[0] == scalers[1]
    assert scalers[0]["hlf"].mean != new.scaler()["hlf"]["mean"]


def test_it_continues_to_learn(first: Path, new: FeatureDataset, tmp_path: Path) -> None:
    later = run(new, tmp_path / "out", first / "model")
    assert (flat_weights(later) != flat_weights(first)).any()


def test_a_run_that_continues_from_its_checkpoint_does_not_begin_again(
    first: Path, new: FeatureDataset, tmp_path: Path
) -> None:
    whole = run(new, tmp_path / "whole", first / "model", epochs=4)
    run(new, tmp_path / "parts", first / "model", epochs=2)
    parts = run(new, tmp_path / "parts", first / "model", epochs=4)
    assert (flat_weights(whole) == flat_weights(parts)).all()


def test_other_layers_are_refused(first: Path, new: FeatureDataset, tmp_path: Path) -> None:
    chosen = {"algorithm": "sgd", "workers": 1}
    spec = make_spec(new, tmp_path / "out", model={"hidden": [4]}, start_from=first / "model", **chosen)
    with pytest.raises(WarmStartError, match=r"settings are .*10, 5.*not .*\[4\].*warm_start: false"):
        train(spec, Transport(), on_progress=None)


def test_other_definitions_of_features_are_refused(first: Path, new: FeatureDataset, tmp_path: Path) -> None:
    content = (new.folder / "dataset.json").read_text()
    changed = FeatureDataset.load(new.folder)._replace(folder=tmp_path / "set")
    changed.folder.mkdir()
    for path in new.folder.iterdir():
        (changed.folder / path.name).symlink_to(path)
    (changed.folder / "dataset.json").unlink()
    (changed.folder / "dataset.json").write_text(content.replace('"definitions": {}', '"definitions": {"cone": 1}'))
    with pytest.raises(WarmStartError, match=r"definitions are \{\}, not \{'cone': 1\}"):
        run(changed, tmp_path / "out", first / "model")


def test_where_it_begins_travels_to_the_ranks(tmp_path: Path, new: FeatureDataset) -> None:
    spec = make_spec(new, tmp_path / "out", start_from=tmp_path / "model")
    spec.save(tmp_path / "run.json")
    assert RunSpec.load(tmp_path / "run.json") == spec


def test_arguments_of_the_launcher_are_not_written(tmp_path: Path, new: FeatureDataset) -> None:
    spec = make_spec(new, tmp_path / "out", launcher_args=["-x", "MY_TOKEN=hush"])
    spec.save(tmp_path / "run.json")
    assert "hush" not in (tmp_path / "run.json").read_text()
    assert RunSpec.load(tmp_path / "run.json").train == spec.train.model_copy(update={"launcher_args": []})
