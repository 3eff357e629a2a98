"""The workloads of images on scikit-learn's digits: rows, networks, settings, and that they learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hep_studies.study import workload_settings
from hep_studies.workloads.images_settings import Cifar10Settings, MnistSettings
from hep_studies.workloads.surface_settings import SurfaceSettings
from models.errors import SavedModelError
from models.networks.hlf_settings import HlfSettings
from training.compiled.engines import PerceptronEngine, compiled_engine
from training.launching.rank import RunSpec
from training.readers.sharding import Assignment, RowRange, assign_rows
from training.settings import TrainSettings
from training.workloads.hep_settings import HepSettings

NETWORKS: dict[str, tuple[MnistSettings | Cifar10Settings, int]] = {
    "lenet5": (MnistSettings(), 61_706),
    "perceptron": (MnistSettings(network="perceptron"), 4_798_010),
    "resnet20": (Cifar10Settings(), 269_722),
    "seven-layers": (Cifar10Settings(network="seven-layers"), 351_946),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_the_published_sizes_and_take_the_rows(name: str) -> None:
    settings, num_parameters = NETWORKS[name]
    workload = settings.open()
    network, rows = workload.network().eval(), workload.rows("val", TrainSettings()).rows
    assert sum(parameter.numel() for parameter in network.parameters()) == num_parameters
    assert network(*rows.batch(np.arange(3)).inputs).shape == (3, 10)
    # Of scaled pixels, as the network sees them.
    first = next(iter(network.children()))
    scaled = (first[0] if name == "resnet20" else first)(
        *workload.rows("train", TrainSettings()).rows.inputs
    )
    if name in ("lenet5", "resnet20"):
        assert scaled.mean().item() == pytest.approx(0, abs=1e-4)
        assert scaled.std().item() == pytest.approx(1, abs=1e-3)
    else:
        assert (scaled.min().item(), scaled.max().item()) == (0, 1)


def test_compiled_code_trains_the_perceptron() -> None:
    assert isinstance(
        compiled_engine(MnistSettings(network="perceptron").open().network()), PerceptronEngine
    )


def test_the_digits_are_divided_once_for_all_runs() -> None:
    workload = MnistSettings().open()
    rows = [
        workload.rows(split, TrainSettings(seed=seed))
        for split in ("train", "val", "test")
        for seed in (1, 2)
    ]
    assert [len(row) for row in rows[::2]] == [1150, 288, 359]
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        assert torch.equal(first.rows.inputs[0], second.rows.inputs[0])
    complete = torch.cat([row.rows.inputs[0] for row in rows[::2]]).flatten(1)
    small = complete.view(-1, 28, 28)[:, 2:-2:3, 2:-2:3].flatten(1).numpy()
    from sklearn.datasets import load_digits

    expected = np.rint(load_digits().data * 255 / 16)
    assert sorted(map(tuple, small.tolist())) == sorted(map(tuple, expected.tolist()))
    assert (small != expected).any(), "they are mixed"


def test_every_epoch_mixes_all_rows_and_reads_each_once() -> None:
    rows = MnistSettings().open().rows("train", TrainSettings())
    row_ranges = [RowRange(group, 0, size) for group, size in enumerate(rows.group_rows)]
    orders = [rows.reading_order(Assignment(epoch, row_ranges, [len(rows)])) for epoch in (0, 1)]
    assert all(sorted(order.tolist()) == list(range(len(rows))) for order in orders)
    assert abs(np.corrcoef([*orders, np.arange(len(rows))]) - np.eye(3)).max() < 0.2


def test_a_saved_network_is_read_again(tmp_path: Path) -> None:
    workload = MnistSettings().open()
    module = workload.network()
    workload.save(module, tmp_path / "model")
    read = workload.load(tmp_path / "model")
    assert all(map(torch.equal, read.state_dict().values(), module.state_dict().values()))
    (tmp_path / "model" / "weights.pt").write_bytes(b"damaged")
    with pytest.raises(SavedModelError, match="no readable model"):
        workload.load(tmp_path / "model")


@pytest.mark.parametrize(
    "workload",
    [
        MnistSettings(network="perceptron"),
        Cifar10Settings(folder=Path("/data/cifar"), augmentation=False),
        HepSettings(folder=Path("/data/features"), network=HlfSettings(hidden=[7])),
        SurfaceSettings(noise=2.0),
    ],
    ids=lambda each: str(each.name),
)
def test_a_run_travels_to_the_ranks_with_its_workload_but_without_secret_arguments(
    tmp_path: Path, workload: Any
) -> None:
    spec = RunSpec(workload, TrainSettings(), tmp_path / "out")
    spec._replace(train=TrainSettings(launcher_args=["-x", "MY_TOKEN=hush"])).save(
        tmp_path / "run.json"
    )
    assert "hush" not in (tmp_path / "run.json").read_text()
    assert RunSpec.load(tmp_path / "run.json") == spec


def test_a_study_names_a_workload_in_plain_values() -> None:
    assert workload_settings({"name": "mnist"}) == MnistSettings()
    for wrong in (
        {"name": "imagenet"},
        {"name": "mnist", "network": "resnet20"},
        {"name": "mnist", "augmentation": 1},
    ):
        with pytest.raises(ValueError, match=r"imagenet|network|augmentation"):
            workload_settings(wrong)


def test_what_a_result_depends_on_is_no_place() -> None:
    places = [Cifar10Settings(folder=Path(position)).meaning for position in ("/a", "/b")]
    assert places[0] == places[1] != Cifar10Settings().meaning


def test_classes_can_be_unequal_among_the_workers() -> None:
    settings = TrainSettings(skew={"dirichlet": 0.1}, seed=3)
    workload = MnistSettings().open()
    partition = workload.partition(settings, world_size=4)
    assert partition is not None
    rows, labels = partition.rows_of_worker(0), workload.rows("train", settings).rows.labels
    reader = workload.reader(settings, torch.device("cpu"), owned_rows=rows)
    read = list(
        reader.train_batches(assign_rows(partition.plan(batch_size=32, epoch=0), rank=0, epoch=0))
    )
    found = torch.cat([batch.labels for batch in read]).bincount(minlength=10)
    assert found.tolist() == labels[partition.owner_of_row == 0].bincount(minlength=10).tolist()
    assert found.max() > len(labels) / 4 / 5, "more than two classes' share is one class"
