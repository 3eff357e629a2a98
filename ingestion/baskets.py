"""Cuts trees between baskets, the compressed blocks of a branch; RNTuples between clusters."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from uproot.models.RNTuple import RField

#: A basket is cut inside only if it is larger than this number of pieces.
_MAX_CHUNKS_PER_BASKET: Final = 4
#: Uncompressed bytes to read at once: 1000 events of Delphes. The cost of a call is negligible
#: then.
_READ_BYTES: Final = 40_000_000


def basket_boundaries(branches: Iterable[Any]) -> list[int]:
    """Entries at which the baskets of the largest branch begin, and the number of entries.

    The branches (or fields) are those of uproot. Every branch has its own baskets. With cuts at
    those of the largest branch, little is decompressed twice.
    """
    branches = list(branches)
    if isinstance(branches[0], RField):
        ntuple = branches[0].ntuple
        starts = [cluster.num_first_entry for cluster in ntuple.cluster_summaries]
        boundaries = [*starts, ntuple.num_entries]
    else:
        largest = max(branches, key=lambda branch: int(branch.uncompressed_bytes))
        boundaries = largest.entry_offsets
    return [int(boundary) for boundary in boundaries]


def piece_edges(branches: Sequence[Any], start: int, stop: int) -> list[int]:
    """Edges that cut `start` to `stop` into pieces of about `_READ_BYTES` of the branches.

    The bytes are those of the baskets, or clusters, in this range. A file of light and of heavy
    events, as `hadd` makes them, is cut into short pieces where they are heavy.
    """
    boundaries = basket_boundaries(branches)
    # The boundaries around the range: the last one up to `start`, the first one from `stop` on.
    first = bisect_right(boundaries, start) - 1
    last = bisect_left(boundaries, stop)
    boundaries = boundaries[first : last + 1]
    running_sizes = _running_bytes(branches, boundaries)
    return chunk_edges(boundaries, start, stop, _READ_BYTES, running_sizes=running_sizes)


def _running_bytes(branches: Sequence[Any], boundaries: Sequence[int]) -> NDArray[np.float64]:
    """(num_boundaries,) uncompressed bytes before each boundary; only differences have a meaning.

    Every branch has its own baskets. Bytes at a boundary inside a basket are interpolated.
    """
    running_bytes = np.zeros(len(boundaries))
    if isinstance(branches[0], RField):
        cluster_starts = basket_boundaries(branches)
        cluster_bytes = _cluster_bytes(branches)
        bytes_before = np.cumsum([0, *cluster_bytes])
        running_bytes += np.interp(boundaries, cluster_starts, bytes_before)
        return running_bytes
    for branch in branches:
        starts = np.asarray(branch.entry_offsets)
        num_baskets = len(starts) - 1
        sizes = np.asarray(branch.member("fBasketBytes")[:num_baskets])
        # Baskets that are stored in the tree itself have no size here.
        all_have_size = len(sizes) == num_baskets and sizes.all()
        if not all_have_size:
            # Each entry counts the same.
            sizes = np.diff(starts)
        compressed_before = np.cumsum([0, *sizes])
        # One factor for the whole branch makes the sizes uncompressed.
        compression = branch.uncompressed_bytes / compressed_before[-1]
        compressed_at_boundaries = np.interp(boundaries, starts, compressed_before)
        running_bytes += compressed_at_boundaries * compression
    return running_bytes


def _cluster_bytes(fields: Sequence[Any]) -> list[int]:
    """Return the uncompressed bytes of some fields of an RNTuple in each of its clusters.

    A cluster is a block of entries. A field has columns, and a column has pages in each cluster.
    The bytes of a page are its number of elements times the size of an element.
    """
    ntuple = fields[0].ntuple
    element_bytes = _element_bytes(fields)
    bytes_of_clusters = []
    for columns in ntuple.page_link_list:
        num_bytes = 0
        # The last columns may be missing in clusters that were written before they were added.
        for record, column in zip(ntuple.column_records, columns, strict=False):
            num_elements = sum(page.num_elements for page in column.pages)
            num_bytes += num_elements * element_bytes.get(record.field_id, 0)
        bytes_of_clusters.append(num_bytes)
    return bytes_of_clusters


def _element_bytes(fields: Sequence[Any]) -> dict[int, int]:
    """Return the size of an element [bytes] of some fields of an RNTuple, by number of the field.

    A field may have several columns of the same type, one for each encoding.
    """
    ntuple = fields[0].ntuple
    form, _ = ntuple.to_akform(filter_name=[field.path for field in fields])
    dtypes = form.expected_from_buffers(buffer_key="{form_key}")
    element_bytes = {}
    for buffer_name, dtype in dtypes.items():
        # Names of buffers contain `column-NUMBER`, if a column fills them.
        if "column-" in buffer_name:
            column_number = int(buffer_name.split("-")[1])
            element_bytes[ntuple.column_records[column_number].field_id] = dtype.itemsize
    return element_bytes


def chunk_edges(
    boundaries: Sequence[int],
    start: int,
    stop: int,
    chunk: int,
    running_sizes: NDArray[np.float64] | None = None,
) -> list[int]:
    """Edges of pieces from `start` to `stop` of at most `chunk` entries, at ends of baskets.

    A piece takes the next basket as long as it stays within `chunk`; it has at least one basket. A
    piece of more than 4 `chunk` is cut inside. Every part then decompresses the whole basket again,
    which takes longer but bounds the memory.

    Args:
        boundaries: Entries at which baskets begin and end.
        start: First entry.
        stop: Entry after the last.
        chunk: Largest size of a piece: entries, or the unit of `running_sizes`.
        running_sizes: (num_boundaries,) size of all before each boundary; None counts entries.

    Examples:
        >>> chunk_edges([0, 100], 0, 100, 10)
        [0, 33, 66, 100]
        >>> chunk_edges([0, 10, 20, 30], 0, 30, 8, np.array([0.0, 4.0, 8.0, 100.0]))
        [0, 20, 23, 26, 30]
        >>> chunk_edges([0, 2, 4], 0, 4, 8, np.array([0.0, 500.0, 400.0]))
        [0, 1, 2, 4]
    """
    running = boundaries if running_sizes is None else running_sizes

    def size(first: int, last: int) -> float:
        # Inside a basket the size is interpolated.
        size_before, size_at_end = np.interp([first, last], boundaries, running)
        return float(size_at_end - size_before)

    basket_ends = [boundary for boundary in boundaries if start < boundary < stop]
    next_ends = [*basket_ends, stop]
    edges = [start]
    for end, next_end in zip(basket_ends, next_ends[1:], strict=True):
        piece_start = edges[-1]
        next_basket_fits = size(piece_start, next_end) <= chunk
        if not next_basket_fits:
            num_chunks = size(piece_start, end) / chunk
            edges += _ends_of_pieces(piece_start, end, num_chunks)
    last_start = edges[-1]
    num_chunks = size(last_start, stop) / chunk
    last_ends = _ends_of_pieces(last_start, stop, num_chunks)
    return edges + last_ends


def _ends_of_pieces(start: int, stop: int, num_chunks: float) -> list[int]:
    """Ends of equal pieces of the entries from `start` to `stop`, each of at most 4 chunks.

    `num_chunks`: size of all entries. It may be 0 for baskets that are stored in the tree itself.
    """
    num_entries = stop - start
    num_pieces = math.ceil(num_chunks / _MAX_CHUNKS_PER_BASKET)
    # There is at least one piece, and there are at most as many as entries.
    num_pieces = max(num_pieces, 1)
    num_pieces = min(num_pieces, num_entries)
    return [start + num_entries * piece // num_pieces for piece in range(1, num_pieces + 1)]
