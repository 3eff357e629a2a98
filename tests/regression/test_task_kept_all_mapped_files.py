"""A mixing task kept all kernel files mapped, so its memory grew with the sample: 2.9 GiB at 100,000 events."""

from __future__ import annotations

import weakref
from functools import partial

import numpy as np
import pyarrow as pa

from features.columns import NUM_CORE
from features.kernel_pass import unmixed_schema
from features.mixing_pass import PickedRows, gathered


def test_no_more_than_two_files_are_mapped_at_a_time() -> None:
    read: list[weakref.ref[np.ndarray]] = []

    def table(number: int) -> pa.Table:
        assert sum(each() is not None for each in read) <= 2
        core = np.full(5 * NUM_CORE, number, dtype=np.float32)
        read.append(weakref.ref(core))
        others = [[""] * 2 if field.type == pa.string() else [number, 3] for field in unmixed_schema()][:-1]
        values = pa.Array.from_buffers(pa.float32(), core.size, [None, pa.py_buffer(core)])
        lists = pa.LargeListArray.from_arrays(pa.array([0, 3 * NUM_CORE, 5 * NUM_CORE]), values)
        return pa.Table.from_arrays([*map(pa.array, others), lists], schema=unmixed_schema())

    picked = [PickedRows(partial(table, number), np.array([1]), np.array([4 - number])) for number in range(5)]
    found = gathered(picked, 5)
    assert len(read) >= 5
    assert found["num_particles"].to_pylist() == [2] * 5
    assert found["particle_pt"].to_pylist() == [[number] * 2 for number in (4, 3, 2, 1, 0)]
