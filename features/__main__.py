"""`python -m features` compiles the kernels before the first run, and caches the machine code.

This takes about half a minute.
"""

from __future__ import annotations

import numpy as np

from features.columns import NUM_CORE
from features.kernel_pass import unmixed_schema
from features.kernels import build_features
from features.matrices import particle_features, particles_from_core
from features.mixing_pass import PickedRows, gather_rows
from features.settings import FeatureSettings
from ingestion.schema import events_schema


def compile_kernels() -> None:
    """Call both passes of the stage `features` without events, which compiles what they call."""
    build_features(events_schema().empty_table(), FeatureSettings())
    no_rows = np.zeros(0, dtype=np.int64)
    gather_rows([PickedRows(unmixed_schema().empty_table, no_rows, no_rows)], 0)
    particle_features(particles_from_core(np.empty((NUM_CORE, 0), dtype=np.float32)))


if __name__ == "__main__":
    compile_kernels()
