"""Reads files in pieces of a few entries, as large files are read in pieces of a few bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ingestion.baskets import basket_boundaries, chunk_edges


def read_in_pieces(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """From now on, pieces have about this number of entries."""

    def edges(branches: Sequence[Any], start: int, stop: int) -> list[int]:
        return chunk_edges(basket_boundaries(branches), start, stop, entries)

    monkeypatch.setattr("ingestion.reader.piece_edges", edges)
