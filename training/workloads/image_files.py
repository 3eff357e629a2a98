"""Reads the public files of MNIST (IDX) and CIFAR-10 (binary version), whatever they hold; never pickles."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.errors import ImageFileError

PixelArray = NDArray[np.uint8]
Labels = NDArray[np.int64]

NUM_CLASSES: Final = 10
_CIFAR_FOLDER: Final = "cifar-10-batches-bin"
_CIFAR_ROWS: Final = 10_000
_CIFAR_SIDE: Final = 32


class PublicFile(NamedTuple):
    """A file that everybody has the same content of."""

    name: str
    digest: str
    """Digest of its content, uncompressed, with the name of the algorithm in front."""


class LabelledImages(NamedTuple):
    """Images and their classes."""

    pixels: PixelArray
    """(num_images, height, width, num_channels)."""
    labels: Labels
    """(num_images,)."""


class MnistPart(NamedTuple):
    """The two files of one part of MNIST."""

    images: PublicFile
    labels: PublicFile
    num_images: int


MNIST: Final = (
    MnistPart(
        PublicFile("train-images-idx3-ubyte", "md5:6bbc9ace898e44ae57da46a324031adb"),
        PublicFile("train-labels-idx1-ubyte", "md5:a25bea736e30d166cdddb491f175f624"),
        60_000,
    ),
    MnistPart(
        PublicFile("t10k-images-idx3-ubyte", "md5:2646ac647ad5339dbf082846283269ea"),
        PublicFile("t10k-labels-idx1-ubyte", "md5:27ae3e4e09519cfbb04c329615203637"),
        10_000,
    ),
)
CIFAR10_TRAIN: Final = (
    PublicFile("data_batch_1.bin", "sha1:aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
    PublicFile("data_batch_2.bin", "sha1:c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
    PublicFile("data_batch_3.bin", "sha1:1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
    PublicFile("data_batch_4.bin", "sha1:aab85764eb3584312d3c7f65fd2fd016e36a258e"),
    PublicFile("data_batch_5.bin", "sha1:26e2849e66a845b7f1e4614ae70f4889ae604628"),
)
CIFAR10_TEST: Final = (PublicFile("test_batch.bin", "sha1:67eb016db431130d61cd03c7ad570b013799c88c"),)


def read_mnist(folder: Path) -> tuple[LabelledImages, LabelledImages]:
    """Training and test images of a folder with the four files, each as it is or as `.gz`.

    Raises:
        ImageFileError: A file is missing, damaged, or another than the public one.
    """
    _refuse_missing("MNIST", folder, [file for part in MNIST for file in (part.images, part.labels)], "")
    train, test = (_mnist_part(folder, part) for part in MNIST)
    return train, test


def read_cifar10(folder: Path) -> tuple[LabelledImages, LabelledImages]:
    """Training and test images of a folder with the six files, or of one with the folder `cifar-10-batches-bin`.

    Raises:
        ImageFileError: A file is missing, damaged, or another than the public one.
    """
    inner = folder / _CIFAR_FOLDER
    place = inner if inner.is_dir() else folder
    has_pickles = any((place / name.removesuffix(".bin")).exists() for name, _ in CIFAR10_TRAIN)
    advice = (
        " The files of the python version are pickles, which can run any code, so they are not read; unpack "
        "cifar-10-binary.tar.gz instead."
        if has_pickles
        else ""
    )
    _refuse_missing("CIFAR-10", place, [*CIFAR10_TRAIN, *CIFAR10_TEST], advice)
    return _cifar_part(place, CIFAR10_TRAIN), _cifar_part(place, CIFAR10_TEST)


def parse_idx(content: bytes, shape: Sequence[int], *, place: Path) -> PixelArray:
    """The array of bytes in an IDX file: two zero bytes, type 8, number of axes, their lengths, the values.

    Args:
        content: The file, uncompressed.
        shape: The lengths of the axes that it must have.
        place: Its place, for errors.

    Raises:
        ImageFileError: The header is another one, or the values are too few or too many.

    Examples:
        >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), [2], place=Path("labels"))
        array([7, 9], dtype=uint8)
    """
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, dtype=">u4").tobytes()
    if content[:4] != header[:4]:
        raise ImageFileError(
            f"{place} is no IDX file of bytes with {len(shape)} axes: it begins with {content[:4].hex(' ')}, not with "
            f"{header[:4].hex(' ')}. Get it again."
        )
    found = np.frombuffer(content[4 : len(header)].ljust(len(header) - 4, b"\0"), dtype=">u4").tolist()
    if found != list(shape):
        raise ImageFileError(f"{place} says that it has the shape {found}, not {list(shape)}. Get it again.")
    _check_size(place, len(content) - len(header), math.prod(shape))
    return np.frombuffer(content, dtype=np.uint8, offset=len(header)).reshape(shape)


def parse_cifar(content: bytes, count: int, *, place: Path) -> LabelledImages:
    """The images of a CIFAR-10 file: for each the label, then 1,024 bytes of red, of green and of blue, row by row.

    Args:
        content: The file.
        count: The number of images that it must have.
        place: Its place, for errors.

    Raises:
        ImageFileError: It has another size, or a label is above 9.
    """
    side = _CIFAR_SIDE
    _check_size(place, len(content), count * (1 + 3 * side * side))
    rows = np.frombuffer(content, dtype=np.uint8).reshape(count, -1)
    pixels = np.ascontiguousarray(rows[:, 1:].reshape(count, 3, side, side).transpose(0, 2, 3, 1))
    return LabelledImages(pixels, _classes(rows[:, 0], place=place))


def read_public(folder: Path, file: PublicFile, size: int) -> bytes:
    """The content of a file, or of its `.gz`, if it is not there; never more than one byte above its known size.

    Raises:
        ImageFileError: It is missing, no regular file, cannot be read or unpacked, or is longer than it should be.
    """
    path = _place(folder, file)
    if path is None:
        raise ImageFileError(f"{folder / file.name} is missing, also as {file.name}.gz")
    if not path.is_file():
        raise ImageFileError(f"{path} is no regular file, or a link that leads to none. Put the public file there.")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as opened:
            content: bytes = opened.read(size + 1)
    except (OSError, EOFError, zlib.error) as cause:
        raise ImageFileError(f"{path} cannot be read ({cause}). Get it again.") from cause
    if len(content) > size:
        raise ImageFileError(f"{path} holds more than {size:,} bytes, the size of the public file. Get it again.")
    return content


def check_digest(content: bytes, file: PublicFile, *, place: Path) -> None:
    """Compare a content with the public one.

    Raises:
        ImageFileError: It is another.
    """
    algorithm, _, expected = file.digest.partition(":")
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise ImageFileError(
            f"{place} is not the public {file.name}: the {algorithm} of its content is {found}, not {expected}. "
            f"Get it again."
        )


def _mnist_part(folder: Path, part: MnistPart) -> LabelledImages:
    images, labels = (
        _idx(folder, part.images, (part.num_images, 28, 28)),
        _idx(folder, part.labels, (part.num_images,)),
    )
    return LabelledImages(images[..., None], _classes(labels, place=folder / part.labels.name))


def _idx(folder: Path, file: PublicFile, shape: Sequence[int]) -> PixelArray:
    place = folder / file.name
    content = read_public(folder, file, 4 + 4 * len(shape) + math.prod(shape))
    values = parse_idx(content, shape, place=place)
    check_digest(content, file, place=place)
    return values


def _cifar_part(folder: Path, files: Sequence[PublicFile]) -> LabelledImages:
    parts = []
    for file in files:
        content = read_public(folder, file, _CIFAR_ROWS * (1 + 3 * _CIFAR_SIDE**2))
        parts.append(parse_cifar(content, _CIFAR_ROWS, place=folder / file.name))
        check_digest(content, file, place=folder / file.name)
    return LabelledImages(*map(np.concatenate, zip(*parts, strict=True)))


def _classes(labels: PixelArray, *, place: Path) -> Labels:
    highest = labels.max(initial=0)
    if highest >= NUM_CLASSES:
        raise ImageFileError(f"{place} has a label of {highest}; labels are 0 to {NUM_CLASSES - 1}. Get it again.")
    return labels.astype(np.int64)


def _check_size(place: Path, found: int, expected: int) -> None:
    if found != expected:
        raise ImageFileError(f"{place} has {found:,} bytes of values, not {expected:,}. Get it again.")


def _place(folder: Path, file: PublicFile) -> Path | None:
    """Where a file or a link of that name is, with `.gz` or without."""
    return next((path for path in (folder / file.name, folder / f"{file.name}.gz") if os.path.lexists(path)), None)


def _refuse_missing(what: str, folder: Path, files: Sequence[PublicFile], advice: str) -> None:
    missing = [file.name for file in files if _place(folder, file) is None]
    if missing:
        raise ImageFileError(
            f"{folder} lacks {', '.join(missing)} of {what}, whose public files are {', '.join(f.name for f in files)}."
            f"{advice} Without `folder` the workload takes the digits of scikit-learn."
        )
