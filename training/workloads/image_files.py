"""Reads the public files of MNIST (IDX) and CIFAR-10 (binary version), known by their digests; never pickles."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.errors import ImageFileError

PixelArray = NDArray[np.uint8]
Labels = NDArray[np.int64]


class PublicFile(NamedTuple):
    """A published file, of the same content everywhere."""

    name: str
    digest: str
    """Digest of its content, uncompressed, with the name of the algorithm in front."""
    size: int
    """Size of its content, uncompressed [bytes]."""


class LabelledImages(NamedTuple):
    """Images and their classes."""

    pixels: PixelArray
    """(num_images, height, width, num_channels)."""
    labels: Labels
    """(num_images,)."""


#: Sizes of the headers of an IDX file with images, and of one with labels.
_IMAGES_HEADER, _LABELS_HEADER = 16, 8
#: Images and labels for training, then for tests.
MNIST: Final = (
    PublicFile("train-images-idx3-ubyte", "md5:6bbc9ace898e44ae57da46a324031adb", _IMAGES_HEADER + 60_000 * 784),
    PublicFile("train-labels-idx1-ubyte", "md5:a25bea736e30d166cdddb491f175f624", _LABELS_HEADER + 60_000),
    PublicFile("t10k-images-idx3-ubyte", "md5:2646ac647ad5339dbf082846283269ea", _IMAGES_HEADER + 10_000 * 784),
    PublicFile("t10k-labels-idx1-ubyte", "md5:27ae3e4e09519cfbb04c329615203637", _LABELS_HEADER + 10_000),
)
_CIFAR_SIDE: Final = 32
_CIFAR_ROW: Final = 1 + 3 * _CIFAR_SIDE**2
#: Five files for training, then one for tests.
CIFAR10: Final = tuple(
    PublicFile(name, f"sha1:{digest}", 10_000 * _CIFAR_ROW)
    for name, digest in (
        ("data_batch_1.bin", "aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
        ("data_batch_2.bin", "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
        ("data_batch_3.bin", "1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
        ("data_batch_4.bin", "aab85764eb3584312d3c7f65fd2fd016e36a258e"),
        ("data_batch_5.bin", "26e2849e66a845b7f1e4614ae70f4889ae604628"),
        ("test_batch.bin", "67eb016db431130d61cd03c7ad570b013799c88c"),
    )
)


def read_mnist(folder: Path) -> tuple[LabelledImages, LabelledImages]:
    """Training and test images of a folder with the four files, each as it is or as `.gz`.

    Raises:
        ImageFileError: A file is missing, or another than the public one.
    """
    contents = _read("MNIST", folder, MNIST)
    train, test = (
        LabelledImages(
            images[_IMAGES_HEADER:].reshape(-1, 28, 28, 1),
            labels[_LABELS_HEADER:].astype(np.int64),
        )
        for images, labels in (contents[:2], contents[2:])
    )
    return train, test


def read_cifar10(folder: Path) -> tuple[LabelledImages, LabelledImages]:
    """Training and test images of a folder with the six files, or of one with the folder `cifar-10-batches-bin`.

    Raises:
        ImageFileError: A file is missing, or another than the public one.
    """
    inner = folder / "cifar-10-batches-bin"
    advice = "The python version's pickles can run any code, so they are not read: unpack cifar-10-binary.tar.gz."
    *train, test = (
        _cifar_images(content)
        for content in _read("CIFAR-10", inner if inner.is_dir() else folder, CIFAR10, advice=advice)
    )
    return LabelledImages(*map(np.concatenate, zip(*train, strict=True))), test


def _cifar_images(content: PixelArray) -> LabelledImages:
    """For each image the label, then 1,024 bytes of red, of green and of blue, row by row."""
    rows = content.reshape(-1, _CIFAR_ROW)
    planes = rows[:, 1:].reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE)
    return LabelledImages(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), rows[:, 0].astype(np.int64))


def _read(what: str, folder: Path, files: Sequence[PublicFile], *, advice: str = "") -> list[PixelArray]:
    """The bytes of some public files of a folder."""
    paths = [(folder / file.name, folder / f"{file.name}.gz") for file in files]
    there = [next((path for path in pair if path.is_file()), None) for pair in paths]
    missing = [file.name for file, path in zip(files, there, strict=True) if path is None]
    if missing:
        raise ImageFileError(
            f"{folder} lacks {', '.join(missing)} of {what}, also as .gz; its public files are "
            f"{', '.join(file.name for file in files)}. {advice} Without `folder` the workload takes the digits of "
            f"scikit-learn."
        )
    return [_public(path, file) for file, path in zip(files, there, strict=True) if path]


def _public(path: Path, file: PublicFile) -> PixelArray:
    """The bytes of a file with the known digest; never more than one byte above its known size is unpacked."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as opened:
            content: bytes = opened.read(file.size + 1)
    except (OSError, EOFError, zlib.error) as cause:
        raise ImageFileError(f"{path} cannot be read ({cause}). Get it again.") from cause
    algorithm, _, expected = file.digest.partition(":")
    digest = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if digest != expected:
        raise ImageFileError(
            f"{path} is not the public {file.name}: the {algorithm} of its first {len(content):,} bytes is {digest}, "
            f"not {expected}. Get it again."
        )
    return np.frombuffer(content, dtype=np.uint8)
