"""Columns that the loss needs beside the inputs: how batches carry them, and which are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from feature_datasets import write_dataset

from features.columns import hlf_names
from features.dataset import FeatureDataset
from training.decorrelate_settings import DecorrelateSettings
from training.errors import ColumnError
from training.readers.reader import open_reader
from training.readers.sharding import assign_rows, plan_epoch
from training.readers.spectators import check_spectators

ROWS = {"train": [11, 11, 5], "val": [7, 3], "test": [4]}
#: Inputs that hold all, some or none of the spectators.
INPUTS = [("hlf",), ("particles", "num_particles"), ("hlf", "particles", "num_particles")]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    """A dataset with two columns of the user: a mass, and a whole number, equal for all QCD."""
    dataset = write_dataset(tmp_path_factory.mktemp("spectators") / "set", rows=ROWS)
    for split in ROWS:
        for file in dataset.files(split):
            table = pq.read_table(file)
            labels = table["label"].to_numpy()
            lepton_pt = table["lepton_pt"].to_numpy().astype(np.float64)
            mass = 1e5 * lepton_pt + 0.25
            run = np.where(labels == 0, 7, np.arange(len(mass)))
            table = table.append_column("Jet.Mass", pa.array(mass))
            pq.write_table(table.append_column("run", pa.array(run)), file)
    return dataset


@pytest.mark.parametrize("reader_kind", ["petastorm", "arrow"])
@pytest.mark.parametrize("inputs", INPUTS, ids="+".join)
def test_each_batch_has_the_columns_of_its_own_events(
    dataset: FeatureDataset, reader_kind: Any, inputs: tuple[str, ...]
) -> None:
    spectators = ["Jet.Mass", "lepton_pt", "num_particles", "run"]
    plan = plan_epoch(ROWS["train"], world_size=1, batch_size=4, seed=1, epoch=0)
    reader = open_reader(
        dataset, inputs, kind=reader_kind, dtype=torch.float64, seed=1, spectators=spectators
    )

    train = list(reader.train_batches(assign_rows(plan, rank=0, epoch=0)))
    val = list(reader.val_batches(rank=0, world_size=1))

    for split, batches in (("train", train), ("val", val)):
        rows = [batch.spectators for batch in batches if batch.spectators is not None]
        delivered = torch.cat(rows).numpy()
        tables = [pq.read_table(file, columns=spectators) for file in dataset.files(split)]
        stored_table = pa.concat_tables(tables)
        stored_columns = [stored_table[name].to_numpy().astype(np.float64) for name in spectators]
        stored = np.column_stack(stored_columns)
        assert sorted(delivered.tolist()) == sorted(stored.tolist())
    for batch in train:
        assert batch.spectators is not None
        mass, lepton_pt, num_particles, _ = batch.spectators.T
        assert torch.equal(mass, 1e5 * lepton_pt + 0.25)
        if "hlf" in inputs:
            index = hlf_names().index("lepton_pt")
            assert torch.equal(lepton_pt, batch.inputs[0][:, index])
        if "num_particles" in inputs:
            assert torch.equal(num_particles, batch.inputs[-1].double())


@pytest.mark.parametrize("reader_kind", ["petastorm", "arrow"])
def test_without_spectators_batches_have_none(dataset: FeatureDataset, reader_kind: Any) -> None:
    reader = open_reader(dataset, ["hlf"], kind=reader_kind, seed=1)

    (first, *_) = reader.val_batches(rank=0, world_size=1)

    assert first.spectators is None


@pytest.mark.parametrize("reader_kind", ["petastorm", "arrow"])
def test_a_number_that_is_nan_arrives_as_nan(
    dataset_with: Callable[..., FeatureDataset], reader_kind: Any
) -> None:
    dataset = dataset_with("val", "QCD", [np.nan])
    reader = open_reader(dataset, ["hlf"], kind=reader_kind, seed=1, spectators=["Jet.Mass"])

    batches = list(reader.val_batches(rank=0, world_size=1))

    rows = [batch.spectators for batch in batches if batch.spectators is not None]
    assert torch.cat(rows).isnan().sum() == 1


def decorrelate(*columns: str, classes: list[str]) -> DecorrelateSettings:
    section = {"from": list(columns), "strength": 1, "classes": classes}
    return DecorrelateSettings.model_validate(section)


def test_columns_that_vary_within_the_classes_are_accepted(dataset: FeatureDataset) -> None:
    check_spectators(dataset, decorrelate("Jet.Mass", "num_particles", classes=["QCD"]))
    check_spectators(dataset, decorrelate("run", classes=["ttbar", "W+jets"]))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("Jet.Mas", r"no column 'Jet.Mas' with one number for each event. Nearest: Jet.Mass.*pass"),
        ("label", "no column 'label'"),
        ("sample", "no column 'sample'"),
        ("particle_pt", "no column 'particle_pt'"),
        ("run", r"'run' is the same for all \d+ QCD events.*Take it out, or take QCD out"),
    ],
)
def test_columns_without_effect_are_refused(
    dataset: FeatureDataset, column: str, message: str
) -> None:
    with pytest.raises(ColumnError, match=message):
        check_spectators(dataset, decorrelate("met", column, classes=["ttbar", "QCD"]))


@pytest.fixture
def dataset_with(dataset: FeatureDataset, tmp_path: Path) -> Callable[..., FeatureDataset]:
    """Copy the dataset, with other masses for the first events of a class in a split."""

    def make(split: str, class_name: str, masses: list[float]) -> FeatureDataset:
        copy = FeatureDataset.load(shutil.copytree(dataset.folder, tmp_path / "copy"))
        label = copy.classes.index(class_name)
        file = copy.files(split)[0]
        table = pq.read_table(file)
        is_class = table["label"].to_numpy() == label
        rows = np.flatnonzero(is_class)[: len(masses)]
        assert len(rows) == len(masses)
        column = table["Jet.Mass"].to_numpy().copy()
        column[rows] = masses
        index = table.column_names.index("Jet.Mass")
        pq.write_table(table.set_column(index, "Jet.Mass", pa.array(column)), file)
        return copy

    return make


@pytest.mark.parametrize("mass", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("split", "split_name"), [("train", "training"), ("val", "validation")])
def test_columns_that_are_not_finite_within_a_class_are_refused(
    dataset_with: Callable[..., FeatureDataset], split: str, split_name: str, mass: float
) -> None:
    dataset = dataset_with(split, "QCD", [mass])
    tables = [pq.read_table(file, columns=["label"]) for file in dataset.files(split)]
    labels = pa.concat_tables(tables)["label"].to_numpy()
    num_qcd = np.count_nonzero(labels == dataset.classes.index("QCD"))

    message = (
        f"'Jet.Mass' is NaN or infinite for 1 of the {num_qcd} QCD events of the {split_name} "
        "split.*Take it out, take QCD out"
    )
    with pytest.raises(ColumnError, match=message):
        check_spectators(dataset, decorrelate("met", "Jet.Mass", classes=["ttbar", "QCD"]))


def test_columns_may_be_nan_where_the_loss_does_not_use_them(
    dataset_with: Callable[..., FeatureDataset],
) -> None:
    dataset = dataset_with("train", "QCD", [np.nan])

    check_spectators(dataset, decorrelate("Jet.Mass", classes=["ttbar"]))
    check_spectators(dataset, decorrelate("met", classes=["QCD"]))
