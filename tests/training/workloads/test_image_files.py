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
from training.workloads import image_files
from training.workloads.image_files import (
    CIFAR10_TEST,
    CIFAR10_TRAIN,
    MNIST,
    MnistPart,
    PublicFile,
    parse_cifar,
    parse_idx,
    read_cifar10,
    read_mnist,
    read_public,
)

PLACE = Path("somewhere")
#: Two axes of 2 and 3.
IDX = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 10, 20, 30, 40, 50, 255])
FILE = PublicFile("images", "md5:")


def test_an_idx_file_is_its_header_and_its_values() -> None:
    assert parse_idx(IDX, [2, 3], place=PLACE).tolist() == [[10, 20, 30], [40, 50, 255]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "begins with , not with 00 00 08 02"),
        (b"\x1f\x8b\x08\x00" + IDX[4:], "begins with 1f 8b 08 00"),
        (IDX[:3] + b"\x01" + IDX[4:], "2 axes: it begins with 00 00 08 01"),
        (IDX[:2] + b"\x0d" + IDX[3:], "begins with 00 00 0d 02"),
        (IDX[:10], r"has the shape \[2, 0\], not \[2, 3\]"),
        (IDX[:4] + b"\xff\xff\xff\xff" + IDX[8:], r"has the shape \[4294967295, 3\]"),
        (IDX[:-1], "has 5 bytes of values, not 6"),
        (IDX + b"x", "has 7 bytes of values, not 6"),
    ],
)
def test_other_bytes_are_no_idx_file_of_that_shape(content: bytes, words: str) -> None:
    with pytest.raises(ImageFileError, match=words):
        parse_idx(content, [2, 3], place=PLACE)


def cifar(*labels: int) -> bytes:
    """Images whose pixel (y, x) has red y, green x, blue its label."""
    rows, columns = np.indices((32, 32), dtype=np.uint8)
    return b"".join(bytes([label]) + rows.tobytes() + columns.tobytes() + bytes([label]) * 1024 for label in labels)


def test_a_cifar_file_has_labels_and_planes_of_colours() -> None:
    found = parse_cifar(cifar(3, 9), 2, place=PLACE)
    assert found.labels.tolist() == [3, 9]
    assert found.pixels.shape == (2, 32, 32, 3)
    assert found.pixels[1, 5, 7].tolist() == [5, 7, 9]


@pytest.mark.parametrize(
    ("content", "words"),
    [(cifar(1), "has 3,073 bytes of values, not 6,146"), (cifar(1, 10), "label of 10; labels are 0 to 9")],
)
def test_other_bytes_are_no_cifar_file(content: bytes, words: str) -> None:
    with pytest.raises(ImageFileError, match=words):
        parse_cifar(content, 2, place=PLACE)


def loop(path: Path) -> None:
    path.symlink_to(path)


def bomb(path: Path) -> None:
    path.with_name("images.gz").write_bytes(gzip.compress(bytes(50_000_000)))


def cut_gz(path: Path) -> None:
    path.with_name("images.gz").write_bytes(gzip.compress(os.urandom(100))[:60])


def no_gz(path: Path) -> None:
    path.with_name("images.gz").write_bytes(b"no gzip at all")


def broken_gz(path: Path) -> None:
    content = bytearray(gzip.compress(os.urandom(100)))
    content[20] ^= 0xFF
    content[-5] ^= 0xFF
    path.with_name("images.gz").write_bytes(content)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda _: None, "is missing, also as images.gz"),
    "loop": (loop, "no regular file, or a link that leads to none"),
    "pipe": (os.mkfifo, "no regular file"),
    "folder": (Path.mkdir, "no regular file"),
    "long": (lambda path: path.write_bytes(bytes(101)), "more than 100 bytes"),
    "bomb": (bomb, "more than 100 bytes"),
    "cut": (cut_gz, "cannot be read"),
    "no gzip": (no_gz, "cannot be read"),
    "broken": (broken_gz, "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, name: str) -> None:
    make, words = HOSTILE[name]
    make(tmp_path / "images")
    with pytest.raises(ImageFileError, match=words):
        read_public(tmp_path, FILE, 100)


def write_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch, *, packs: bool) -> None:
    """MNIST of 3 + 2 images, which the code takes for the public one."""
    parts = []
    for number, part in zip((3, 2), MNIST, strict=True):
        header = bytes([0, 0, 8, 3, 0, 0, 0, number, 0, 0, 0, 28, 0, 0, 0, 28])
        images = header + bytes(pixel % 256 for pixel in range(number * 784))
        labels = bytes([0, 0, 8, 1, 0, 0, 0, number]) + bytes(range(number))
        files = []
        for file, content in ((part.images, images), (part.labels, labels)):
            (folder / f"{file.name}{'.gz' if packs else ''}").write_bytes(gzip.compress(content) if packs else content)
            files.append(PublicFile(file.name, f"md5:{hashlib.new('md5', content, usedforsecurity=False).hexdigest()}"))
        parts.append(MnistPart(files[0], files[1], number))
    monkeypatch.setattr(image_files, "MNIST", tuple(parts))


@pytest.mark.parametrize("packs", [False, True])
def test_mnist_is_read_as_it_is_and_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packs: bool) -> None:
    write_mnist(tmp_path, monkeypatch, packs=packs)
    train, test = read_mnist(tmp_path)
    assert train.pixels.shape == (3, 28, 28, 1)
    assert train.pixels[0, 1, :2, 0].tolist() == [28, 29]
    assert test.labels.tolist() == [0, 1]


def test_files_of_another_content_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path, monkeypatch, packs=False)
    path = tmp_path / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(ImageFileError, match=r"t10k-images-idx3-ubyte is not the public .*md5 of its content is"):
        read_mnist(tmp_path)
    path.unlink()
    with pytest.raises(ImageFileError, match=r"lacks t10k-images-idx3-ubyte of MNIST, whose public files are train-im"):
        read_mnist(tmp_path)


def test_the_public_digests_are_of_what_they_say() -> None:
    lengths = {"md5": 32, "sha1": 40}
    files = [file for part in MNIST for file in (part.images, part.labels)] + [*CIFAR10_TRAIN, *CIFAR10_TEST]
    for file in files:
        algorithm, digest = file.digest.split(":")
        assert len(bytes.fromhex(digest)) * 2 == lengths[algorithm]
    assert len({file.digest for file in files}) == len(files) == 10


def test_cifar_is_read_from_the_folder_of_its_archive_and_never_from_pickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data_batch_1").write_bytes(b"a pickle")
    with pytest.raises(ImageFileError, match=r"lacks data_batch_1.bin, .* are pickles, .* unpack cifar-10-binary"):
        read_cifar10(tmp_path)
    inner = tmp_path / "cifar-10-batches-bin"
    inner.mkdir()
    monkeypatch.setattr(image_files, "_CIFAR_ROWS", 2)
    for name, files in (("CIFAR10_TRAIN", CIFAR10_TRAIN), ("CIFAR10_TEST", CIFAR10_TEST)):
        known = []
        for number, file in enumerate(files):
            (inner / file.name).write_bytes(content := cifar(number, 9))
            known.append(
                PublicFile(file.name, f"sha1:{hashlib.new('sha1', content, usedforsecurity=False).hexdigest()}")
            )
        monkeypatch.setattr(image_files, name, tuple(known))
    train, test = read_cifar10(tmp_path)
    assert train.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert test.pixels.shape == (2, 32, 32, 3)
