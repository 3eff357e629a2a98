"""Files of MNIST and CIFAR-10: byte by byte, and what hostile or damaged ones lead to."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from training.errors import ImageFileError
from training.workloads.images import CIFAR10, MNIST, PublicFile, read_cifar10, read_mnist


def public(file: PublicFile, content: bytes) -> PublicFile:
    """The file of that name, as if this were its public content."""
    algorithm = file.digest.partition(":")[0]
    digest = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    return PublicFile(file.name, f"{algorithm}:{digest}", len(content))


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with MNIST of 3 + 2 images, which the code takes for the public one."""
    known = []
    for number, (images, labels) in zip((3, 2), (MNIST[:2], MNIST[2:]), strict=True):
        header = bytes([0, 0, 8, 3, 0, 0, 0, number, 0, 0, 0, 28, 0, 0, 0, 28])
        contents = (
            header + bytes(pixel % 256 for pixel in range(number * 784)),
            bytes([0, 0, 8, 1, 0, 0, 0, number]) + bytes(range(number)),
        )
        for file, content in zip((images, labels), contents, strict=True):
            (tmp_path / file.name).write_bytes(content)
            known.append(public(file, content))
    monkeypatch.setattr("training.workloads.images.MNIST", tuple(known))
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


def packed(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.with_name(f"{path.name}.gz").write_bytes(content)


NOISE = gzip.compress(os.urandom(100))
HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda _: None, "lacks t10k-labels-idx1-ubyte of MNIST"),
    "loop": (lambda path: path.symlink_to(path), "lacks t10k-labels-idx1-ubyte of MNIST"),
    "pipe": (os.mkfifo, "lacks t10k-labels-idx1-ubyte of MNIST"),
    "folder": (Path.mkdir, "lacks t10k-labels-idx1-ubyte of MNIST"),
    "other": (lambda path: path.write_bytes(bytes(10)), "md5 of its first 10 bytes is"),
    "long": (lambda path: path.write_bytes(bytes(99)), "md5 of its first 11 bytes is"),
    "bomb": (packed(gzip.compress(bytes(50_000_000))), "md5 of its first 11 bytes is"),
    "cut": (packed(NOISE[:15]), "cannot be read"),
    "no gzip": (packed(b"no gzip at all"), "cannot be read"),
    "broken": (packed(NOISE[:12] + b"\xff\xff" + NOISE[14:-6] + b"abcdef"), "cannot be read|md5 of its first"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(mnist: Path, name: str) -> None:
    make, words = HOSTILE[name]
    path = mnist / MNIST[3].name
    path.unlink()
    make(path)
    with pytest.raises(ImageFileError, match=words):
        read_mnist(mnist)


def test_the_public_digests_are_of_what_they_say() -> None:
    lengths = {"md5": 32, "sha1": 40}
    for file in (*MNIST, *CIFAR10):
        algorithm, digest = file.digest.split(":")
        assert len(bytes.fromhex(digest)) * 2 == lengths[algorithm]
    assert len({file.digest for file in (*MNIST, *CIFAR10)}) == 10
    assert [file.size for file in (*MNIST, *CIFAR10[:1])] == [47_040_016, 60_008, 7_840_016, 10_008, 30_730_000]


def test_cifar_is_read_from_the_folder_of_its_archive_and_never_from_pickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data_batch_1").write_bytes(b"a pickle")
    with pytest.raises(ImageFileError, match=r"lacks data_batch_1.bin, .* pickles .* unpack cifar-10-binary"):
        read_cifar10(tmp_path)
    inner = tmp_path / "cifar-10-batches-bin"
    inner.mkdir()
    # Images whose pixel (y, x) has red y, green x, blue its label.
    planes = b"".join(each.tobytes() for each in np.indices((32, 32), dtype=np.uint8))
    known = []
    for number, file in enumerate(CIFAR10):
        content = b"".join(bytes([label]) + planes + bytes([label]) * 1024 for label in (number, 9))
        (inner / file.name).write_bytes(content)
        known.append(public(file, content))
    monkeypatch.setattr("training.workloads.images.CIFAR10", tuple(known))
    train, test = read_cifar10(tmp_path)
    assert train.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert train.pixels[1, 5, 7].tolist() == [5, 7, 9]
    assert test.pixels.shape == (2, 32, 32, 3)
