"""Features: empty parts, the memory of tasks, and samples that leave the config."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import SAMPLES, small_config
from event_rows import event_row, events_table, lepton, track
from numpy.typing import NDArray
from stages_in_process import run_stages, without_spark

from features import mixing_pass
from features.columns import NUM_CORE
from features.kernel_pass import EventsFile, event_keys, run_kernels
from features.mixing import plan_mixing
from features.mixing_pass import KernelFile, PickedRows, gather_rows, write_groups
from features.settings import FeatureSettings, SplitSettings
from features.unmixed_files import ROWS_PER_BATCH, BatchRows, read_rows
from pipeline.errors import MissingInputError

SETTINGS = FeatureSettings(feed_workers=1, split=SplitSettings(train=0.4, val=0.3, test=0.3))


def test_a_part_without_selected_events_is_left_out(tmp_path: Path) -> None:
    """The kernel output of such a part has no rows to cut into pieces."""
    electron = lepton(40, 0, 0)
    near_track = track(40, 0.1, 0)
    good = [event_row(entry=entry, label=entry % 2, electrons=[electron]) for entry in range(60)]
    # A track beside the electron, which is not isolated.
    bad = [event_row(entry=60, electrons=[electron], tracks=[near_track])]
    keys = []
    files = []
    first_row = 0
    for name, rows in (("bad.parquet", bad), ("good.parquet", good), ("bad2.parquet", bad)):
        pq.write_table(events_table(rows), tmp_path / name)
        events_file = EventsFile(name, "made", "", str(tmp_path / name))
        output = run_kernels(events_file, SETTINGS, tmp_path)
        path = output.path(tmp_path.parent)
        files.append(KernelFile(str(path), first_row, 1.0))
        keys.append(event_keys(path, SETTINGS))
        first_row += output.counts["selected"]
    plan = plan_mixing(keys, SETTINGS, ["QCD", "ttbar"])
    for split in ("train", "val", "test"):
        (tmp_path / split).mkdir()

    written, _ = write_groups(plan.groups, files, ["QCD", "ttbar"], tmp_path)

    assert [len(part_keys.label) for part_keys in keys] == [0, 60, 0]
    assert sum(group.group.rows for group in written) == 60


def test_a_mixing_task_holds_one_batch_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the memory of a mixing task grows with the sample: 2.9 GiB at 100,000 events."""
    tracks = [track(5.0, 2.0, 0.001 * index) for index in range(400)]
    picked = []
    for index in range(5):
        events = [
            event_row(entry=entry, electrons=[lepton(40, 0, 0)], tracks=tracks)
            for entry in range(ROWS_PER_BATCH)
        ]
        name = f"{index}.parquet"
        pq.write_table(events_table(events), tmp_path / name)
        output = run_kernels(EventsFile(name, "made", "", str(tmp_path / name)), SETTINGS, tmp_path)
        rows = np.arange(ROWS_PER_BATCH)
        picked.append(
            PickedRows(output.path(tmp_path.parent), 1.0, rows, rows + index * ROWS_PER_BATCH)
        )
    batch_bytes = ROWS_PER_BATCH * 401 * NUM_CORE * 4
    bytes_before = pa.total_allocated_bytes()
    held_bytes = []

    def read_and_measure(path: Path, rows: NDArray[np.int64]) -> Iterator[BatchRows]:
        for batch_rows in read_rows(path, rows):
            held_bytes.append(pa.total_allocated_bytes() - bytes_before)
            yield batch_rows

    monkeypatch.setattr(mixing_pass, "read_rows", read_and_measure)

    rows = gather_rows(picked, np.full(5 * ROWS_PER_BATCH, 401))

    assert len(held_bytes) == 5
    assert max(held_bytes) < 2.5 * batch_bytes
    assert rows["num_particles"].to_pylist() == [401] * (5 * ROWS_PER_BATCH)


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
