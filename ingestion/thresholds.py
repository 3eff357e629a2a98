"""Pure array kernels on jagged collections: thresholds, finiteness, selection of events.

A jagged collection is a flat array of all candidates of all events, and `offsets` (int64, number of
events + 1): event i owns the candidates `offsets[i]:offsets[i + 1]`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import awkward as ak
import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Jagged(NamedTuple):
    """A jagged collection: `offsets` (num_events + 1,) and one flat array per field."""

    offsets: Offsets
    fields: dict[str, NDArray[Any]]

    def to_awkward(self) -> ak.Array:
        """One list of records per event, which uproot writes."""
        return ak.unflatten(ak.zip(self.fields), np.diff(self.offsets))

    @property
    def size(self) -> NDArray[Any]:
        """(num_candidates,) pT, or ET of a collection without it [GeV]."""
        return self.fields["pt" if "pt" in self.fields else "et"]


def offsets_after_mask(offsets: Offsets, mask: Mask) -> Offsets:
    """Offsets (num_events + 1,) of the events in `array[mask]`, the candidates that a mask keeps.

    `mask` is (num_candidates,). The new offset of an event is the number of kept candidates before
    it.
    """
    running = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
    return running[offsets]


def any_per_event(offsets: Offsets, mask: Mask) -> Mask:
    """(num_events,) whether the mask holds for any candidate of the event."""
    return np.diff(offsets_after_mask(offsets, mask)) > 0


def wrap_azimuths(phi: NDArray[np.float32]) -> NDArray[np.float32]:
    """Azimuths within [-pi, pi], to float32; azimuths in this range keep every bit, NaN stays NaN.

    Examples:
        >>> wrap_azimuths(np.array([3.0, 4.0, 6.5], np.float32)).round(3).astype(str).tolist()
        ['3.0', '-2.283', '0.217']
    """
    outside = is_out_of_range(phi)
    # The number of whole turns, negative for negative azimuths.
    turns = np.round(phi[outside].astype(np.float64) / (2 * np.pi))
    wrapped = phi.copy()
    wrapped[outside] -= 2 * np.pi * turns
    return wrapped


def is_out_of_range(phi: NDArray[np.float32]) -> Mask:
    """True for finite azimuths outside [-pi, pi], to float32."""
    return np.isfinite(phi) & (np.abs(phi) > np.float32(np.pi))


def is_padding(candidates: Jagged) -> Mask:
    """(num_candidates,) whether a slot of an array holds no candidate but a filler number.

    A slot is padding if its pT (or ET) is negative. It also is if eta and phi are the same number
    and this number is also pT, or pT is 0, or the number is beyond a full turn, such as 999. Slots
    with NaN or infinity are no padding.
    """
    size = candidates.size
    eta, phi = candidates.fields["eta"], candidates.fields["phi"]
    is_negative = np.isfinite(size) & (size < 0)
    is_one_number = (eta == phi) & ((size == eta) | (size == 0) | (np.abs(phi) > 2 * np.pi))
    padding: Mask = is_negative | is_one_number
    return padding


def drop_padding(candidates: Jagged) -> Jagged:
    """The candidates with a positive pT (or ET) that are no padding."""
    mask = (candidates.size > 0) & ~is_padding(candidates)
    fields = {name: values[mask] for name, values in candidates.fields.items()}
    return Jagged(offsets_after_mask(candidates.offsets, mask), fields)
