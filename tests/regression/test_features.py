"""Features: empty parts, mapped files, and samples that leave the config."""

from __future__ import annotations

import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import SAMPLES, small_config
from event_rows import event_row, events_table, lepton, track
from stages_in_process import run_stages, without_spark

from features.columns import NUM_CORE
from features.kernel_pass import EventsFile, event_keys, run_kernels, unmixed_schema
from features.mixing import plan_mixing
from features.mixing_pass import KernelFile, PickedRows, gather_rows, write_groups
from features.settings import FeatureSettings, SplitSettings
from pipeline.errors import MissingInputError

SETTINGS = FeatureSettings(feed_workers=1, split=SplitSettings(train=0.4, val=0.3, test=0.3))


def test_a_part_without_selected_events_is_left_out(tmp_path: Path) -> None:
    """The kernel output of such a part has no rows to cut into pieces."""
    good = [
        event_row(entry=entry, label=entry % 2, electrons=[lepton(40, 0, 0)]) for entry in range(60)
    ]
    bad = [event_row(entry=60, electrons=[lepton(40, 0, 0)], tracks=[track(40, 0.1, 0)])]
    keys = []
    files = []
    first_event = 0
    for name, rows in (("bad.parquet", bad), ("good.parquet", good), ("bad2.parquet", bad)):
        pq.write_table(events_table(rows), tmp_path / name)
        output = run_kernels(EventsFile(name, "made", "", str(tmp_path / name)), SETTINGS, tmp_path)
        path = output.path(tmp_path.parent)
        files.append(KernelFile(str(path), first_event, 1.0))
        keys.append(event_keys(path, SETTINGS))
        first_event += output.counts["selected"]
    plan = plan_mixing(keys, SETTINGS, ["QCD", "ttbar"])
    for split in ("train", "val", "test"):
        (tmp_path / split).mkdir()

    written, _ = write_groups(plan.groups, files, ["QCD", "ttbar"], tmp_path)

    assert [len(part_keys.label) for part_keys in keys] == [0, 60, 0]
    assert sum(group.group.rows for group in written) == 60


def test_no_more_than_two_files_are_mapped_at_a_time() -> None:
    """Otherwise the memory of a mixing task grows with the sample: 2.9 GiB at 100,000 events."""
    mapped: list[weakref.ref[np.ndarray]] = []

    def table(index: int) -> pa.Table:
        assert sum(reference() is not None for reference in mapped) <= 2
        core = np.full(5 * NUM_CORE, index, dtype=np.float32)
        mapped.append(weakref.ref(core))
        remaining = [
            [""] * 2 if field.type == pa.string() else [index, 3] for field in unmixed_schema()
        ][:-1]
        values = pa.Array.from_buffers(pa.float32(), core.size, [None, pa.py_buffer(core)])
        lists = pa.LargeListArray.from_arrays(pa.array([0, 3 * NUM_CORE, 5 * NUM_CORE]), values)
        return pa.Table.from_arrays([*map(pa.array, remaining), lists], schema=unmixed_schema())

    picked = [
        PickedRows(partial(table, index), np.array([1]), np.array([4 - index]))
        for index in range(5)
    ]

    rows = gather_rows(picked, 5)

    assert len(mapped) >= 5
    assert rows["num_particles"].to_pylist() == [2] * 5
    assert rows["particle_pt"].to_pylist() == [[index] * 2 for index in (4, 3, 2, 1, 0)]


def sample(name: str, label: int, particle_kind: str, index: int = 0) -> dict[str, object]:
    files = [str(SAMPLES / f"{particle_kind}_13TeV_PU20_{index}.root")]
    return {"name": name, "label": label, "files": files, "cross_section_pb": 10.0**index}


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "high"], ids=["gone", "renamed"])
def test_features_need_ingest_again_after_a_sample_left_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """Without its cross-section, all slices of its class would count by their events."""
    without_spark(monkeypatch, tmp_path)
    remaining = [sample("low", 0, "qcd"), sample("ttbar", 1, "ttbar"), sample("wjets", 2, "wjets")]
    run_stages(
        small_config(tmp_path, tmp_path, samples=[*remaining, sample("hard", 0, "qcd", 1)]),
        "ingest",
    )
    if name is not None:
        remaining.append(sample(name, 0, "qcd", 1))
    config = small_config(tmp_path, tmp_path, samples=remaining)

    with pytest.raises(
        MissingInputError,
        match=r"sample 'hard' .* no such sample now\. Run `python -m pipeline ingest`",
    ):
        run_stages(config, "features")
