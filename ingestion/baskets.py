"""Where to cut a tree: between baskets, the compressed blocks of a ROOT file; an RNTuple between its clusters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
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
        return [int(cluster.num_first_entry) for cluster in ntuple.cluster_summaries] + [int(ntuple.num_entries)]
    largest = max(branches, key=lambda branch: int(branch.uncompressed_bytes))
    return [int(boundary) for boundary in largest.entry_offsets]


def entries_at_once(branches: Iterable[Any]) -> int:
    """Number of entries whose uncompressed size in some uproot branches (or fields) is at most about `_READ_BYTES`.

    Of an RNTuple it is their mean size that counts.
    """
    branches = list(branches)
    if isinstance(branches[0], RField):
        return int(branches[0].ntuple.num_entries_for(_READ_BYTES, filter_name=[field.path for field in branches]))
    num_entries = int(branches[0].num_entries)
    # Uproot's own method would read the header of every basket.
    size = sum(int(branch.uncompressed_bytes) for branch in branches)
    chunk = max(1, _READ_BYTES * num_entries // max(size, 1))
    if chunk >= num_entries:
        return chunk
    return max(1, int(chunk / _density(max(branches, key=lambda branch: int(branch.uncompressed_bytes)), chunk)))


def _density(branch: Any, chunk: int) -> float:
    """How much more bytes than on average entries have where they have most, over an eighth of `chunk` entries.

    In a file of light and of heavy events, as `hadd` makes them, pieces of the mean size would be large.
    """
    edges = np.asarray(branch.entry_offsets)
    sizes = np.asarray(branch.member("fBasketBytes")[: len(edges) - 1])
    if len(sizes) < len(edges) - 1 or not sizes.all():
        # Some baskets stand in the tree itself.
        return 1.0
    running, window = np.cumsum([0, *sizes]), max(1, chunk // 8)
    most = (np.interp(edges + window, edges, running) - running).max() / window
    return max(1.0, float(most * edges[-1] / running[-1]))


def chunk_edges(boundaries: Sequence[int], start: int, stop: int, chunk: int) -> list[int]:
    """Edges that cut `start` to `stop` into pieces of at most `chunk` entries, as far as the baskets allow.

    Baskets of more than 4 `chunk` entries are cut inside. Every piece then decompresses the whole basket again, which
    takes longer but bounds the memory.

    Examples:
        >>> chunk_edges([0, 3, 6, 9, 12], 0, 12, 7)
        [0, 6, 12]
        >>> chunk_edges([0, 3, 6, 9, 12], 0, 12, 6)
        [0, 6, 12]
        >>> chunk_edges([0, 20], 0, 20, 7)
        [0, 20]
        >>> chunk_edges([0, 100], 0, 100, 10)
        [0, 33, 66, 100]
    """
    edges = [start]
    inside = [boundary for boundary in boundaries if start < boundary < stop] + [stop]
    for boundary, following in zip(inside, [*inside[1:], None], strict=True):
        if following is not None and following - edges[-1] <= chunk:
            continue
        first, entries = edges[-1], boundary - edges[-1]
        num_pieces = -(-entries // (_MOST_CHUNKS_PER_BASKET * chunk))
        edges += [first + entries * piece // num_pieces for piece in range(1, num_pieces + 1)]
    return edges
