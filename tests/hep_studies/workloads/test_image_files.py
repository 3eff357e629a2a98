"""Files of MNIST and CIFAR-10: byte by byte, and what damaged ones lead to."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from hep_studies.workloads.images import CIFAR10, MNIST, read_cifar10, read_mnist
from training.errors import DamagedDatasetError

LAST = "t10k-labels-idx1-ubyte"


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with MNIST of 3 + 2 images, which the code takes for the public one."""
    for name in MNIST:
        num_images = 3 if name.startswith("train") else 2
        file_bytes = bytes(8) + bytes(range(num_images))
        if "images" in name:
            file_bytes = bytes(16) + bytes(pixel % 256 for pixel in range(num_images * 784))
        (tmp_path / name).write_bytes(file_bytes)
        digest = hashlib.md5(file_bytes, usedforsecurity=False).hexdigest()
        monkeypatch.setitem(MNIST, name, digest)
    return tmp_path


@pytest.mark.parametrize("packs", [False, True])
def test_mnist_is_read_as_it_is_and_packed(mnist: Path, packs: bool) -> None:
    if packs:
        for path in list(mnist.iterdir()):
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()

    train, test = read_mnist(mnist)

    assert train.pixels.shape == (3, 28, 28, 1)
    assert train.pixels[0, 1, :2, 0].tolist() == [28, 29]
    assert test.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, f"{LAST} of MNIST cannot be read"),
        ({LAST: bytes(10)}, f"{LAST} is not the public file: its md5 is not"),
        ({f"{LAST}.gz": gzip.compress(bytes(99))[:15]}, f"{LAST}.gz of MNIST cannot be read"),
        ({f"{LAST}.gz": b"no gzip at all"}, f"{LAST}.gz of MNIST cannot be read"),
    ],
    ids=["missing", "other", "cut", "no gzip"],
)
def test_damaged_files_are_refused(mnist: Path, files: dict[str, bytes], message: str) -> None:
    (mnist / LAST).unlink()
    for name, file_bytes in files.items():
        (mnist / name).write_bytes(file_bytes)

    with pytest.raises(DamagedDatasetError, match=message):
        read_mnist(mnist)


def test_cifar_is_read_from_the_folder_of_its_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "cifar-10-batches-bin"
    inner.mkdir()
    # Images whose pixel (y, x) has red y, green x, blue its label.
    red, green = np.indices((32, 32), dtype=np.uint8)
    for index, name in enumerate(CIFAR10):
        file_bytes = b""
        for label in (index, 9):
            blue = bytes([label]) * 1024
            file_bytes += bytes([label]) + red.tobytes() + green.tobytes() + blue
        (inner / name).write_bytes(file_bytes)
        digest = hashlib.sha1(file_bytes, usedforsecurity=False).hexdigest()
        monkeypatch.setitem(CIFAR10, name, digest)

    train, test = read_cifar10(tmp_path)

    assert train.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert train.pixels[1, 5, 7].tolist() == [5, 7, 9]
    assert test.pixels.shape == (2, 32, 32, 3)
