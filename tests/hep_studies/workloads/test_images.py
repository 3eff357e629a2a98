"""The workloads of images on scikit-learn's digits: rows, networks, settings, and that they
learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from hep_studies.studied_workload import workload_settings
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
    validation = workload.rows("val", TrainSettings())
    batch = validation.rows.batch(np.arange(3))

    logits = network(*batch.inputs)

    assert sum(parameter.numel() for parameter in network.parameters()) == num_parameters
    assert logits.shape == (3, 10)


def scaled_pixels(name: str) -> torch.Tensor:
    """The pixels of the training images as a network sees them."""
    settings, _ = NETWORKS[name]
    workload = settings.open()
    scaling, *_ = workload.network().children()
    if name == "resnet20":
        scaling = scaling[0]
    training = workload.rows("train", TrainSettings())
    scaled: torch.Tensor = scaling(*training.rows.inputs)
    return scaled


@pytest.mark.parametrize("name", ["lenet5", "resnet20"])
def test_pixels_are_scaled_to_mean_0_and_spread_1(name: str) -> None:
    pixels = scaled_pixels(name)

    assert pixels.mean().item() == pytest.approx(0, abs=1e-4)
    assert pixels.std().item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", ["perceptron", "seven-layers"])
def test_pixels_are_scaled_to_the_unit_interval(name: str) -> None:
    pixels = scaled_pixels(name)

    assert pixels.min().item() == 0
    assert pixels.max().item() == 1


def test_compiled_code_trains_the_perceptron() -> None:
    network = MnistSettings(network="perceptron").open().network()

    assert isinstance(compiled_engine(network), PerceptronEngine)


def split_images(seed: int) -> list[torch.Tensor]:
    """The images of each split."""
    workload = MnistSettings().open()
    settings = TrainSettings(seed=seed)
    images = []
    for split in ("train", "val", "test"):
        (images_of_split,) = workload.rows(split, settings).rows.inputs
        images.append(images_of_split)
    return images


def test_the_digits_are_divided_once_for_all_runs() -> None:
    images = split_images(seed=1)
    images_of_other_seed = split_images(seed=2)

    assert [len(split) for split in images] == [1150, 288, 359]
    for split, split_of_other_seed in zip(images, images_of_other_seed, strict=True):
        assert torch.equal(split, split_of_other_seed)


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

    first = rows.reading_order(Assignment(0, row_ranges, [len(rows)]))
    second = rows.reading_order(Assignment(1, row_ranges, [len(rows)]))

    unmixed = np.arange(len(rows))
    assert np.array_equal(np.sort(first), unmixed)
    assert np.array_equal(np.sort(second), unmixed)
    correlations = np.corrcoef([first, second, unmixed]) - np.eye(3)
    assert abs(correlations).max() < 0.2


def test_a_saved_network_is_read_again(tmp_path: Path) -> None:
    workload = MnistSettings().open()
    module = workload.network()
    folder = tmp_path / "model"
    workload.save(module, folder)

    loaded = workload.load(folder)

    weights = module.state_dict()
    assert loaded.state_dict().keys() == weights.keys()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, weights[name])
    (folder / "weights.pt").write_bytes(b"damaged")
    with pytest.raises(SavedModelError, match="no readable model"):
        workload.load(folder)


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
    settings = workload_settings({"name": "mnist"})

    assert settings == MnistSettings()


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
    in_folder = Cifar10Settings(folder=Path("/a"))
    in_other_folder = Cifar10Settings(folder=Path("/b"))
    without_folder = Cifar10Settings()

    assert in_folder.meaning == in_other_folder.meaning
    assert in_folder.meaning != without_folder.meaning


def test_classes_can_be_unequal_among_the_workers() -> None:
    settings = TrainSettings(skew={"dirichlet": 0.1}, seed=3)
    workload = MnistSettings().open()
    partition = workload.partition(settings, world_size=4)
    assert partition is not None
    owned_rows = partition.rows_of_worker(0)
    reader = workload.reader(settings, torch.device("cpu"), owned_rows=owned_rows)
    plan = partition.plan(batch_size=32, epoch=0)
    assignment = assign_rows(plan, rank=0, epoch=0)

    batches = list(reader.train_batches(assignment))

    read_labels = torch.cat([batch.labels for batch in batches])
    counts = read_labels.bincount(minlength=10)
    labels = workload.rows("train", settings).rows.labels
    owned_labels = labels[partition.owner_of_row == 0]
    expected_counts = owned_labels.bincount(minlength=10)
    assert torch.equal(counts, expected_counts)
    # A class has a tenth of the rows of a worker if all are equal.
    share_of_two_classes = len(labels) / 4 / 5
    assert counts.max() > share_of_two_classes
