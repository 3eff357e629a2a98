"""ROOT files are decompressed by isal where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import uproot

from ingestion import root_format


@pytest.fixture
def packed(tmp_path: Path) -> Iterator[Path]:
    with uproot.recreate(tmp_path / "a.root", compression=uproot.ZLIB(1)) as file:
        file.mktree("Delphes", {"x": "float32"}).extend({"x": np.zeros(5000, np.float32)})
    yield tmp_path / "a.root"
    importlib.reload(root_format)


def test_uproot_decompresses_with_isal(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isal_zlib = pytest.importorskip("isal.isal_zlib")
    sizes: list[int] = []
    real = isal_zlib.decompress

    def noted(data: bytes, *, bufsize: int) -> bytes:
        sizes.append(bufsize)
        return bytes(real(data, bufsize=bufsize))

    monkeypatch.setattr(isal_zlib, "decompress", noted)
    with uproot.open({packed: "Delphes"}) as tree:
        assert not tree["x"].array(library="np").any()
    assert sizes
