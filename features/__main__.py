"""`python -m features` compiles the kernels before the first run, and caches the machine code.

This takes about half a minute.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from features.columns import NUM_CORE
from features.kernel_pass import unmixed_schema
from features.kernels import build_features
from features.matrices import particle_features, particles_from_core
from features.mixing_pass import PickedRows, gather_rows
from features.settings import FeatureSettings, SplitSettings
from features.unmixed_files import CORE, write_unmixed
from ingestion.schema import events_schema


def compile_kernels() -> None:
    """Call both passes of the stage `features` for one row, which compiles what they call."""
    build_features(events_schema().empty_table(), FeatureSettings())
    with TemporaryDirectory() as folder:
        path = Path(folder) / "row.arrow"
        schema = unmixed_schema()
        write_unmixed(path, [_row_without_particles(schema)], schema, SplitSettings())
        first_row = np.zeros(1, dtype=np.int64)
        picked = PickedRows(path, 1.0, first_row, first_row)
        num_particles = np.zeros(1, dtype=np.int32)
        gather_rows([picked], num_particles)
    core_columns = np.empty((NUM_CORE, 0), dtype=np.float32)
    particle_features(particles_from_core(core_columns))


def _row_without_particles(schema: pa.Schema) -> pa.RecordBatch:
    """A row of zeros in a schema of unmixed rows."""
    row: dict[str, object] = {}
    for field in schema:
        row[field.name] = 0
        if field.type == pa.string():
            row[field.name] = str(uuid.UUID(int=0))
    row[CORE] = []
    return pa.RecordBatch.from_pylist([row], schema=schema)


if __name__ == "__main__":
    compile_kernels()
