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
from numpy.typing import NDArray

from features.columns import hlf_names
from features.errors import DatasetError
from features.kernels import EnergyScales, build_features
from features.schema import identities_in
from features.settings import FeatureSettings
from hep_core.checked_parquet import open_parquet


def shifted_features(
    parts: Iterable[Path],
    wanted: pa.Array,
    settings: FeatureSettings,
    shifts: Sequence[EnergyScales],
) -> list[NDArray[np.float32]]:
    """High-level features of the events `wanted` (from `features.schema.identities`) after each of some shifts.

    Each is (num_events, NUM_HLF), NaN where the selection rejects the event. An event that is in none of the `parts`,
    files of the events Parquet, is an error.
    """
    found = [np.full((len(wanted), len(hlf_names())), np.nan, dtype=np.float32) for _ in shifts]
    is_seen = np.zeros(len(wanted), dtype=np.bool_)
    alone = settings.model_copy(update={"particles": False})
    for path in parts:
        with open_parquet(path) as file:
            for group in range(file.num_row_groups):
                events = file.read_row_group(group)
                places = pc.index_in(identities_in(events), value_set=wanted)
                events = events.filter(places.is_valid()).combine_chunks()
                own = places.drop_null().to_numpy()
                is_seen[own] = True
                for shift, rows in zip(shifts, found, strict=True):
                    block = build_features(events, alone, scales=shift)
                    rows[own[block.selected]] = block.hlf
    if not is_seen.all():
        raise DatasetError(
            f"{(~is_seen).sum()} of {len(wanted)} events are not in the events Parquet, such as "
            f"{wanted[int(is_seen.argmin())]}. Make the features again."
        )
    return found
