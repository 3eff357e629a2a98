"""Where to cut a tree: between baskets, the compressed blocks of a ROOT file; an RNTuple between its clusters."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from uproot.models.RNTuple import RField

_MOST_CHUNKS_PER_BASKET: Final = 4
#: Uncompressed bytes to read at once: 1000 events of Delphes. The cost of a call is negligible then.
_READ_BYTES: Final = 40_000_000


def basket_boundaries(branches: Iterable[Any]) -> list[int]:
    """Entries at which the baskets of the largest of some uproot branches (or fields) begin, and the number of entries.

    Every branch has its own baskets. With cuts at those of the largest branch, little is decompressed twice.
    """
    branches = list(branches)
    if isinstance(branches[0], RField):
        ntuple = branches[0].ntuple
        return [int(cluster.num_first_entry) for cluster in ntuple.cluster_summaries] + [
            int(ntuple.num_entries)
        ]
    largest = max(branches, key=lambda branch: int(branch.uncompressed_bytes))
    return [int(boundary) for boundary in largest.entry_offsets]


def piece_edges(branches: Sequence[Any], start: int, stop: int) -> list[int]:
    """Edges that cut `start` to `stop` into pieces of about `_READ_BYTES`, of some uproot branches (or fields).

    The bytes are those of the baskets, or clusters, there: a file of light and of heavy events, as `hadd` makes them,
    is cut into short pieces where they are heavy.
    """
    boundaries = basket_boundaries(branches)
    around = boundaries[bisect_right(boundaries, start) - 1 : bisect_left(boundaries, stop) + 1]
    return chunk_edges(around, start, stop, _READ_BYTES, _running_bytes(branches, around))


def _running_bytes(branches: Sequence[Any], boundaries: Sequence[int]) -> NDArray[np.float64]:
    """Uncompressed bytes before each of some boundaries, up to a constant."""
    running = np.zeros(len(boundaries))
    if isinstance(branches[0], RField):
        ntuple = branches[0].ntuple
        form, _ = ntuple.to_akform(filter_name=[field.path for field in branches])
        buffers = form.expected_from_buffers(buffer_key="{form_key}")
        # A field may have other columns in some clusters, and none in those written before it was added.
        widths = {
            ntuple.column_records[int(name.split("-")[1])].field_id: kind.itemsize
            for name, kind in buffers.items()
            if "column-" in name
        }
        of_clusters = [
            sum(
                widths.get(record.field_id, 0) * page.num_elements
                for record, column in zip(ntuple.column_records, columns, strict=False)
                for page in column.pages
            )
            for columns in ntuple.page_link_list
        ]
        running += np.interp(boundaries, basket_boundaries(branches), np.cumsum([0, *of_clusters]))
        return running
    for branch in branches:
        edges = np.asarray(branch.entry_offsets)
        sizes = np.asarray(branch.member("fBasketBytes")[: len(edges) - 1])
        if len(sizes) < len(edges) - 1 or not sizes.all():
            # Some baskets stand in the tree itself.
            sizes = np.diff(edges)
        compressed = np.cumsum([0, *sizes])
        running += np.interp(boundaries, edges, compressed) * (
            branch.uncompressed_bytes / compressed[-1]
        )
    return running


def chunk_edges(
    boundaries: Sequence[int],
    start: int,
    stop: int,
    chunk: int,
    sizes: NDArray[np.float64] | None = None,
) -> list[int]:
    """Edges that cut `start` to `stop` into pieces of at most `chunk` entries, as far as the baskets allow.

    With `sizes`, running ones at the boundaries, `chunk` is in their unit. Baskets of more than 4 `chunk` are cut
    inside. Every piece then decompresses the whole basket again, which takes longer but bounds the memory.

    Examples:
        >>> chunk_edges([0, 100], 0, 100, 10)
        [0, 33, 66, 100]
        >>> chunk_edges([0, 10, 20, 30], 0, 30, 8, sizes=np.array([0.0, 4.0, 8.0, 100.0]))
        [0, 20, 23, 26, 30]
        >>> chunk_edges([0, 2, 4], 0, 4, 8, sizes=np.array([0.0, 500.0, 400.0]))
        [0, 1, 2, 4]
    """

    def size(first: int, last: int) -> float:
        before, after = np.interp([first, last], boundaries, boundaries if sizes is None else sizes)
        return float(after - before)

    edges = [start]
    inside = [boundary for boundary in boundaries if start < boundary < stop] + [stop]
    for boundary, following in zip(inside, [*inside[1:], None], strict=True):
        if following is not None and size(edges[-1], following) <= chunk:
            continue
        first, entries = edges[-1], boundary - edges[-1]
        # Baskets that stand in the tree itself have no bytes, and an entry is not cut.
        num_pieces = min(
            entries, max(1, math.ceil(size(first, boundary) / (_MOST_CHUNKS_PER_BASKET * chunk)))
        )
        edges += [first + entries * piece // num_pieces for piece in range(1, num_pieces + 1)]
    return edges
