"""High-level features after a shift of the energy scale of jets or of the missing energy.

They are computed again from the events, by the kernels of the features, so they are exact: jets
cross the threshold on their pT, and HT, the numbers of jets and MT follow. An experiment would also
shift MET with the jets, and b-tags; this does not. Only events that passed the selection without
the shift are computed: those that fail it after the shift get NaN, those that pass it only after
the shift (`min_jets`) are missing.
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
from features.schema import row_identities
from features.settings import FeatureSettings
from hep_core.checked_parquet import open_parquet


def shifted_features(
    files: Iterable[Path],
    identities: pa.Array,
    settings: FeatureSettings,
    shifts: Sequence[EnergyScales],
) -> list[NDArray[np.float32]]:
    """High-level features of some events after each of some shifts.

    Args:
        files: Files of the events Parquet.
        identities: (num_events,) the events, from `features.schema.identities`.
        settings: Selection and definitions.
        shifts: Factors on energies.

    Returns:
        For each shift (num_events, NUM_HLF), NaN where the selection rejects the event.

    Raises:
        DatasetError: An event is in none of the files.
    """
    shape = (len(identities), len(hlf_names()))
    hlf_by_shift = [np.full(shape, np.nan, dtype=np.float32) for _ in shifts]
    is_found = np.zeros(len(identities), dtype=np.bool_)
    # Particle lists do not depend on the shifts, and are not needed.
    settings = settings.model_copy(update={"particles": False})
    for path in files:
        with open_parquet(path) as events_file:
            for group in range(events_file.num_row_groups):
                events = events_file.read_row_group(group)
                # Row of each event in the result; null for an event that is not asked for.
                indices = pc.index_in(row_identities(events), value_set=identities)
                events = events.filter(indices.is_valid()).combine_chunks()
                rows = indices.drop_null().to_numpy()
                is_found[rows] = True
                for shift, hlf in zip(shifts, hlf_by_shift, strict=True):
                    block = build_features(events, settings, scales=shift)
                    hlf[rows[block.selected]] = block.hlf
    if not is_found.all():
        num_missing = np.count_nonzero(~is_found)
        first_missing = identities[int(is_found.argmin())]
        raise DatasetError(
            f"{num_missing} of {len(identities)} events are not in the events Parquet, such as "
            f"{first_missing}. Make the features again."
        )
    return hlf_by_shift
