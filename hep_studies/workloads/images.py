"""The workloads `mnist` and `cifar10`: public images, or scikit-learn's digits in their shape."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn
from typing_extensions import override

from hep_core.random_streams import random_stream
from hep_studies.networks.lenet5 import lenet5
from hep_studies.networks.resnet20 import resnet20
from hep_studies.networks.seven_layers import seven_layers
from hep_studies.networks.wide_perceptron import wide_perceptron
from models.networks.scaling_layer import Scaler
from training.errors import DamagedDatasetError
from training.readers.batch import Rows
from training.readers.memory import MemoryReader, MemoryRows
from training.readers.reader import Reader
from training.readers.sharding import OwnedRows, even_parts
from training.settings import TrainSettings
from training.workloads.draws import Augmentation
from training.workloads.workload import Split, Workload, network_dtype

PixelArray = NDArray[np.uint8]
Labels = NDArray[np.int64]


class LabelledImages(NamedTuple):
    """Images and their classes."""

    pixels: PixelArray
    """(num_images, height, width, num_channels)."""
    labels: Labels
    """(num_images,)."""


#: Sizes of the headers of an IDX file with images, and of one with labels [bytes].
_IMAGES_HEADER, _LABELS_HEADER = 16, 8
#: Images and labels for training, then for tests, each with the MD5 of its content, uncompressed.
MNIST: Final = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
#: Height and width of an image of CIFAR-10 [pixels].
_CIFAR_SIDE: Final = 32
#: Five files for training, then one for tests, each with its SHA-1.
CIFAR10: Final = {
    "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
}


def read_mnist(folder: Path) -> tuple[LabelledImages, LabelledImages]:
    """Return training and test images of a folder with the four files, plain or as `.gz`.

    Raises:
        DamagedDatasetError: A file is missing, or is not the public one.
    """
    arrays = _read_public_files("MNIST", folder, MNIST, "md5")
    train_images, train_labels, test_images, test_labels = arrays
    train = _mnist_images(train_images, train_labels)
    return train, _mnist_images(test_images, test_labels)


def _mnist_images(images: PixelArray, labels: PixelArray) -> LabelledImages:
    """Return the content of a file with images and of one with labels, each after its header."""
    return LabelledImages(
        images[_IMAGES_HEADER:].reshape(-1, 28, 28, 1), labels[_LABELS_HEADER:].astype(np.int64)
    )


def read_cifar10(folder: Path) -> tuple[LabelledImages, LabelledImages]:
    """Return training and test images of a folder with the six files.

    They may lie in a folder `cifar-10-batches-bin` inside, as in their archive.

    Raises:
        DamagedDatasetError: A file is missing, or is not the public one.
    """
    inner = folder / "cifar-10-batches-bin"
    if inner.is_dir():
        folder = inner
    arrays = _read_public_files("CIFAR-10 (binary version)", folder, CIFAR10, "sha1")
    *train_files, test = [_cifar_images(array) for array in arrays]
    train = LabelledImages(
        np.concatenate([images.pixels for images in train_files]),
        np.concatenate([images.labels for images in train_files]),
    )
    return train, test


def _cifar_images(array: PixelArray) -> LabelledImages:
    """Return the images and labels of a file of CIFAR-10, from its bytes.

    An image is a byte for the label, then 1,024 bytes each of red, green and blue, row by row. The
    result has the colours on the last axis.
    """
    rows = array.reshape(-1, 1 + 3 * _CIFAR_SIDE**2)
    planes = rows[:, 1:].reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE)
    pixels = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return LabelledImages(pixels, rows[:, 0].astype(np.int64))


def _read_public_files(
    dataset: str, folder: Path, digests: Mapping[str, str], algorithm: str
) -> list[PixelArray]:
    """Return the bytes of public files with known digests, each plain or as `.gz`.

    Args:
        dataset: Its name, for messages.
        folder: The folder of the files.
        digests: The digest of the unpacked content of each file, by its name.
        algorithm: The algorithm of the digests, `md5` or `sha1`.

    Raises:
        DamagedDatasetError: A file is missing or damaged, or is not the public one.
    """
    arrays = []
    for name, expected in digests.items():
        packed = folder / f"{name}.gz"
        path = packed if packed.is_file() else folder / name
        try:
            file_bytes = path.read_bytes()
            if path is packed:
                file_bytes = gzip.decompress(file_bytes)
        except (OSError, EOFError, zlib.error) as cause:
            raise DamagedDatasetError(
                f"{path} of {dataset} cannot be read ({cause}). Get the public files, or leave out "
                f"`folder` for the digits of scikit-learn."
            ) from cause
        if hashlib.new(algorithm, file_bytes, usedforsecurity=False).hexdigest() != expected:
            raise DamagedDatasetError(
                f"{path} is not the public file: its {algorithm} is not {expected}. Get that."
            )
        arrays.append(np.frombuffer(file_bytes, dtype=np.uint8))
    return arrays


#: Seed of the division into splits, which is the same for all runs.
_SPLIT_SEED: Final = 0
#: Number of images of the public training part that are for validation.
_NUM_VAL: Final = 5_000
#: Shares of scikit-learn's digits for tests, and of the others for validation.
_TEST_SHARE, _VAL_SHARE = 0.2, 0.16
#: Number of row groups, the parts that are dealt to the workers. Many numbers of workers divide it.
_GROUPS: Final = 960
#: Number of images of a batch of the validation.
_VAL_BATCH: Final = 1024


class _NetworkKind(NamedTuple):
    """A network, and how images are prepared for it."""

    make: Callable[[Scaler], nn.Module]
    """Makes the network, which scales raw pixels itself."""
    scaler: Callable[[PixelArray], Scaler]
    """Makes the scaler from the training images."""
    augmentation: Augmentation | None = None
    """Random crops of the training images; None: the network has none."""
    is_flat: bool = False
    """Whether the network takes the pixels of an image in one row."""


def standardised(pixels: PixelArray) -> Scaler:
    """Return the scaler to mean 0 and standard deviation 1 of each channel.

    Both are computed from how often each value of 0 to 255 occurs, without a large array of floats.
    `pixels`: (num_images, height, width, num_channels).

    Examples:
        >>> standardised(np.array([0, 10], np.uint8).reshape(2, 1, 1, 1))
        Scaler(mean=[5.0], std=[5.0], log_above=[], limit=None)
    """
    values = np.arange(256)
    means = []
    stds = []
    for channel in range(pixels.shape[3]):
        channel_pixels = pixels[..., channel].reshape(-1)
        frequencies = np.bincount(channel_pixels, minlength=256) / channel_pixels.size
        mean = float(frequencies @ values)
        variance = frequencies @ (values - mean) ** 2
        means.append(mean)
        stds.append(float(np.sqrt(variance)))
    return Scaler(means, stds)


def to_unit_interval(pixels: PixelArray) -> Scaler:
    """Return the scaler from 0..255 to 0..1 of each channel, or of each pixel of flat images."""
    num_columns = pixels.shape[-1]
    return Scaler([0.0] * num_columns, [255.0] * num_columns)


def flat_to_unit_interval(pixels: PixelArray) -> Scaler:
    """Return the scaler from 0..255 to 0..1 of images in one row."""
    return to_unit_interval(pixels.reshape(len(pixels), -1))


_NETWORKS: Final = {
    "lenet5": _NetworkKind(lenet5, standardised),
    "perceptron": _NetworkKind(wide_perceptron, flat_to_unit_interval, is_flat=True),
    "resnet20": _NetworkKind(resnet20, standardised, Augmentation(padding=4, side=32)),
    "seven-layers": _NetworkKind(seven_layers, to_unit_interval, Augmentation(padding=0, side=28)),
}


class Images(Workload):
    """The images of `mnist` or `cifar10`, and a network that classifies them.

    `folder`: of the public files; None for scikit-learn's digits. `augmentation`: whether training
    takes random crops.
    """

    def __init__(self, name: str, network: str, folder: Path | None, *, augmentation: bool) -> None:
        self._splits = _load_splits(name, folder)
        self._network = _NETWORKS[network]
        self._scaler = self._network.scaler(self._splits["train"].pixels)
        self.augmentation = self._network.augmentation if augmentation else None

    @override
    def group_rows(self, split: Split) -> list[int]:
        """Return the number of images in each row group of a split, as equal as possible."""
        num_rows = len(self._splits[split].labels)
        return even_parts(num_rows, min(num_rows, _GROUPS))

    @override
    def network(self) -> nn.Module:
        return self._network.make(self._scaler)

    @override
    def reader(
        self, settings: TrainSettings, device: torch.device, *, owned_rows: OwnedRows | None = None
    ) -> Reader:
        """Return a reader of both splits, which are in memory.

        `owned_rows`: a worker's rows of each row group; None: all.
        """
        train = self.rows("train", settings, device)
        val = self.rows("val", settings, device)
        # Row groups of the validation are its batches.
        bounds = [*range(0, len(val), _VAL_BATCH), len(val)]
        val = replace(val, group_rows=np.diff(bounds).tolist())
        return MemoryReader(train, val, owned_rows=owned_rows)

    @override
    def rows(
        self, split: Split, settings: TrainSettings, device: torch.device | None = None
    ) -> MemoryRows:
        """Return the rows of a split in memory: raw pixels, labels and weights of 1.

        Pixels stay bytes, (num_images, height, width, num_channels), which the network scales. A
        flat network takes floats, (num_images, num_pixels).
        """
        images = self._splits[split]
        dtype = network_dtype(settings)
        inputs = torch.from_numpy(images.pixels).to(device)
        if self._network.is_flat:
            inputs = inputs.reshape(len(inputs), -1).to(dtype)
        labels = torch.from_numpy(images.labels)
        weights = torch.ones(len(labels), dtype=dtype, device=device)
        rows = Rows((inputs,), labels.to(device), weights)
        return MemoryRows(rows, settings.seed, self.group_rows(split), mixes_groups=True)


# The runs of a study share the images.
@lru_cache(maxsize=2)
def _load_splits(name: str, folder: Path | None) -> dict[Split, LabelledImages]:
    """Return the images of each split, which is the same for all runs.

    Public files have a test part, and the training part is divided at random. Without a folder,
    scikit-learn's digits are enlarged to the same shape and divided into all three splits.
    """
    if folder is not None:
        read = read_mnist if name == "mnist" else read_cifar10
        images, test = read(folder)
        train, val = _split_randomly(images, _NUM_VAL)
    else:
        images = _enlarged_digits(28, 1) if name == "mnist" else _enlarged_digits(32, 3)
        num_images = len(images.labels)
        train, test = _split_randomly(images, round(_TEST_SHARE * num_images))
        train, val = _split_randomly(train, round(_VAL_SHARE * num_images))
    return {"train": train, "val": val, "test": test}


def _split_randomly(
    images: LabelledImages, num_second: int
) -> tuple[LabelledImages, LabelledImages]:
    """Return two random parts of images, the same in every run; the second has `num_second`."""
    order = random_stream(_SPLIT_SEED, "image splits").permutation(len(images.labels))
    first = order[:-num_second]
    second = order[-num_second:]
    return (
        LabelledImages(images.pixels[first], images.labels[first]),
        LabelledImages(images.pixels[second], images.labels[second]),
    )


def _enlarged_digits(side: int, num_channels: int) -> LabelledImages:
    """Return scikit-learn's 1,797 digits of 8 x 8 pixels as larger images.

    Each pixel becomes a square, and each digit stands in the middle of a black image. All channels
    are equal. `side`: height and width of the images; a multiple of 8, or 4 more.
    """
    digits = load_digits()
    # Values of 0 to 16 become 0 to 255.
    small = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    scale = side // 8
    border = side % 8 // 2
    large = small.repeat(scale, axis=1).repeat(scale, axis=2)
    framed = np.pad(large, ((0, 0), (border, border), (border, border)))
    pixels = np.repeat(framed[..., None], num_channels, axis=3)
    return LabelledImages(pixels, digits.target.astype(np.int64))
