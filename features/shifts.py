"""High-level features after a shift of the energy scale of jets or of the missing energy, computed anew from events.

Exact: jets cross the threshold on their pT, and HT, the numbers of jets and MT follow; the kernels are those of the
features. Not shifted: what an experiment would also change, such as MET by the shift of the jets, and b-tags. Events
that pass the selection only after the shift (`min_jets`) are not among the events; those that then fail it are found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from features.columns import NUM_HLF
from features.errors import DatasetError
from features.kernels import EnergyScales, build_features
from features.schema import readable
from features.settings import FeatureSettings


def shifted_features(
    parts: Iterable[Path], identities: pa.Table, settings: FeatureSettings, shifts: Sequence[EnergyScales]
) -> list[NDArray[np.float32]]:
    """High-level features of some selected events after each of some shifts.

    Args:
        parts: Files of the events Parquet that hold the events.
        identities: Columns `file_uuid` and `entry` of the events.
        settings: Selection and definitions.
        shifts: The shifts.

    Returns:
        For each shift, (num_events, NUM_HLF) in the order of `identities`; NaN where the selection rejects the event.

    Raises:
        DatasetError: An event is in none of the files.
    """
    pairs = zip(identities["file_uuid"].to_pylist(), identities["entry"].to_pylist(), strict=True)
    places = {identity: place for place, identity in enumerate(pairs)}
    found = [np.full((len(places), NUM_HLF), np.nan, dtype=np.float32) for _ in shifts]
    unseen = set(places)
    entries = pc.unique(identities["entry"])
    alone = settings.model_copy(update={"particles": False})
    for path in parts:
        with pq.ParquetFile(readable(path)) as file:
            for group in range(file.num_row_groups):
                events = file.read_row_group(group)
                events = events.filter(pc.is_in(events["entry"], entries))
                own = list(zip(events["file_uuid"].to_pylist(), events["entry"].to_pylist(), strict=True))
                kept = np.flatnonzero([identity in places for identity in own])
                if not kept.size:
                    continue
                events, own = events.take(kept).combine_chunks(), [own[index] for index in kept]
                unseen.difference_update(own)
                for shift, rows in zip(shifts, found, strict=True):
                    block = build_features(events, alone, scales=shift)
                    rows[[places[own[index]] for index in block.selected]] = block.hlf
    if unseen:
        raise DatasetError(
            f"{len(unseen)} of {len(places)} events are not in the events Parquet, such as {min(unseen)}. "
            f"Make the features again."
        )
    return found
