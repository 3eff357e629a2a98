"""The workloads of images on scikit-learn's digits: rows, networks, settings, and that they
learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from hep_studies.study import workload_settings
from hep_studies.workloads.images_settings import Cifar10Settings, MnistSettings
from hep_studies.workloads.surface_settings import SurfaceSettings
from models.errors import SavedModelError
from models.networks.hlf_settings import HlfSettings
from training.compiled.engines import PerceptronEngine, compiled_engine
from training.launching.run_spec import RunSpec
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
    network = workload.network().eval()
    batch = workload.rows("val", TrainSettings()).rows.batch(np.arange(3))

    assert sum(parameter.numel() for parameter in network.parameters()) == num_parameters
    assert network(*batch.inputs).shape == (3, 10)


def scaled_pixels(name: str) -> torch.Tensor:
    """The pixels of the training images as a network sees them."""
    settings, _ = NETWORKS[name]
    workload = settings.open()
    scaling = next(iter(workload.network().children()))
    if name == "resnet20":
        scaling = scaling[0]
    scaled: torch.Tensor = scaling(*workload.rows("train", TrainSettings()).rows.inputs)
    return scaled


@pytest.mark.parametrize("name", ["lenet5", "resnet20"])
def test_pixels_are_scaled_to_mean_0_and_spread_1(name: str) -> None:
    pixels = scaled_pixels(name)

    assert pixels.mean().item() == pytest.approx(0, abs=1e-4)
    assert pixels.std().item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", ["perceptron", "seven-layers"])
def test_pixels_are_scaled_to_the_unit_interval(name: str) -> None:
    pixels = scaled_pixels(name)

    assert (pixels.min().item(), pixels.max().item()) == (0, 1)


def test_compiled_code_trains_the_perceptron() -> None:
    network = MnistSettings(network="perceptron").open().network()

    assert isinstance(compiled_engine(network), PerceptronEngine)


def split_images(seed: int) -> list[torch.Tensor]:
    """The images of each split."""
    workload = MnistSettings().open()
    settings = TrainSettings(seed=seed)
    return [workload.rows(split, settings).rows.inputs[0] for split in ("train", "val", "test")]


def test_the_digits_are_divided_once_for_all_runs() -> None:
    images = split_images(seed=1)

    assert [len(split) for split in images] == [1150, 288, 359]
    assert all(map(torch.equal, images, split_images(seed=2)))


def test_each_digit_is_in_one_split() -> None:
    images = torch.cat(split_images(seed=1)).view(-1, 28, 28)

    # Each pixel of a digit is a square of 3 x 3, within a border of 2.
    digits = images[:, 2:-2:3, 2:-2:3].flatten(1).tolist()

    expected = np.rint(load_digits().data * 255 / 16).tolist()
    assert sorted(digits) == sorted(expected)
    assert digits != expected, "they are mixed"


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

    loaded = workload.load(tmp_path / "model")

    assert all(map(torch.equal, loaded.state_dict().values(), module.state_dict().values()))
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
    ids=lambda workload: str(workload.name),
)
def test_a_run_travels_to_the_ranks_with_its_workload_but_without_secret_arguments(
    tmp_path: Path, workload: Any
) -> None:
    spec = RunSpec(workload, TrainSettings(), tmp_path / "out")
    secret_train = TrainSettings(launcher_args=["-x", "MY_TOKEN=hush"])
    path = tmp_path / "run.json"

    spec._replace(train=secret_train).save(path)

    assert "hush" not in path.read_text()
    assert RunSpec.load(path) == spec


def test_a_study_names_a_workload_in_plain_values() -> None:
    assert workload_settings({"name": "mnist"}) == MnistSettings()


@pytest.mark.parametrize(
    "workload",
    [
        {"name": "imagenet"},
        {"name": "mnist", "network": "resnet20"},
        {"name": "mnist", "augmentation": 1},
    ],
    ids=str,
)
def test_an_unknown_workload_is_refused(workload: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"imagenet|network|augmentation"):
        workload_settings(workload)


def test_a_result_does_not_depend_on_the_folder_of_the_images() -> None:
    meanings = [Cifar10Settings(folder=Path(folder)).meaning for folder in ("/a", "/b")]

    assert meanings[0] == meanings[1] != Cifar10Settings().meaning


def test_classes_can_be_unequal_among_the_workers() -> None:
    settings = TrainSettings(skew={"dirichlet": 0.1}, seed=3)
    workload = MnistSettings().open()
    partition = workload.partition(settings, world_size=4)
    assert partition is not None
    owned_rows = partition.rows_of_worker(0)
    reader = workload.reader(settings, torch.device("cpu"), owned_rows=owned_rows)
    assignment = assign_rows(partition.plan(batch_size=32, epoch=0), rank=0, epoch=0)

    batches = list(reader.train_batches(assignment))

    counts = torch.cat([batch.labels for batch in batches]).bincount(minlength=10)
    labels = workload.rows("train", settings).rows.labels
    owned_labels = labels[partition.owner_of_row == 0]
    assert counts.tolist() == owned_labels.bincount(minlength=10).tolist()
    assert counts.max() > len(labels) / 4 / 5, "one class has the share of two"
