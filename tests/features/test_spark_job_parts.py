"""The tasks of the features job, run here without Spark."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from event_rows import Row, event_row, events_table, lepton, tower, track
from extracted_features import particles_of
from spark_in_process import InProcessSpark

from features import mixing_pass, spark_job
from features.columns import MAX_PARTICLES, NUM_CORE
from features.errors import FeatureError
from features.kernel_pass import (
    LACKS_OWN_TRACK,
    EventKeys,
    EventsFile,
    KernelOutput,
    event_keys,
    read_unmixed,
    run_kernels,
)
from features.kernels import OUTCOMES, build_features
from features.matrices import model_inputs
from features.mixing import plan_mixing
from features.mixing_pass import KernelFile, PickedRows, gather_rows, write_group, write_groups
from features.normalisation import GeneratedSample
from features.schema import SPLITS, features_schema
from features.settings import Balance, FeatureSettings
from features.spark_job import track_hint

CLASSES = ["QCD", "ttbar", "W+jets"]
FILE = str(uuid.UUID(int=5))


def events(count: int, *, seed: int = 1) -> list[Row]:
    rng = np.random.default_rng(seed)
    created = []
    for entry in range(count):
        tracks = [track(*rng.uniform([0.6, -2, -3], [9, 2, 3])) for _ in range(rng.integers(0, 30))]
        photons = [
            tower(*rng.uniform([1.1, -2, -3], [9, 2, 3])) for _ in range(rng.integers(0, 10))
        ]
        created.append(
            event_row(
                file_uuid=FILE,
                entry=entry,
                label=entry % 3,
                electrons=[lepton(40 + entry % 7, 0, 0)],
                tracks=tracks,
                photons=photons,
                weight=1.0 + entry % 2,
            )
        )
    return created


def run_tasks(
    tables: list[pa.Table], settings: FeatureSettings, folder: Path
) -> tuple[list[KernelOutput], Path]:
    unmixed, out = folder / "unmixed", folder / "out"
    for each in (unmixed, *(out / split for split in SPLITS)):
        each.mkdir(parents=True)
    blocks = []
    for index, table in enumerate(tables):
        pq.write_table(table, folder / f"part-{index}.parquet", row_group_size=70)
        blocks.append(kernels_of(folder / f"part-{index}.parquet", settings, unmixed))
    keys = [event_keys(block.path(folder), settings) for block in blocks]
    first_events = np.cumsum([0, *(len(key.split) for key in keys)])
    files = [
        KernelFile(str(block.path(folder)), first, 1.0)
        for block, first in zip(blocks, first_events, strict=False)
    ]
    for groups in plan_mixing(keys, settings, CLASSES).tasks(max_events=50):
        write_groups(groups, files, CLASSES, out)
    return blocks, out


def kernels_of(path: Path, settings: FeatureSettings, folder: Path) -> KernelOutput:
    return run_kernels(EventsFile(path.name, "made", "digest", str(path)), settings, folder)


def content(out: Path) -> dict[str, list[Row]]:
    return {
        str(path.relative_to(out)): pq.read_table(path).to_pylist()
        for path in sorted(out.rglob("*.parquet"))
    }


@pytest.mark.slow
def test_every_selected_event_is_in_exactly_one_row_group(tmp_path: Path) -> None:
    blocks, out = run_tasks([events_table(events(300))], FeatureSettings(feed_workers=2), tmp_path)
    entries = [row["entry"] for rows in content(out).values() for row in rows]
    assert sorted(entries) == list(range(300))
    assert blocks[0].counts == {
        "events": 300,
        **dict.fromkeys(OUTCOMES, 0),
        "selected": 300,
        "leptons_without_own_track": 300,
    }


@pytest.mark.parametrize("particles", [True, False])
def test_leptons_without_their_own_track_are_counted_and_explained(
    tmp_path: Path, particles: bool
) -> None:
    settings = FeatureSettings(particles=particles)
    rows = [
        event_row(
            entry=entry, electrons=[lepton(40.0, 0.5, 0.1)], tracks=[track(40.0, 0.5, 0.1 + shift)]
        )
        for entry, shift in enumerate([0.0, 2e-4, 2e-4])
    ]
    pq.write_table(events_table(rows), tmp_path / "a.parquet")
    output = kernels_of(tmp_path / "a.parquet", settings, tmp_path)
    assert (output.counts["selected"], output.counts[LACKS_OWN_TRACK]) == (1, 2)
    assert "In 2 of 3 events of 'made' no track is within features.own_track_dr" in track_hint(
        "made", output.counts
    )
    assert track_hint("made", {**output.counts, LACKS_OWN_TRACK: 1}) == ""


def test_files_have_the_schema_one_row_group_each_and_mixed_classes(tmp_path: Path) -> None:
    _, out = run_tasks([events_table(events(300))], FeatureSettings(feed_workers=4), tmp_path)
    for path in out.rglob("*.parquet"):
        footer = pq.ParquetFile(path)
        assert footer.num_row_groups == 1
        assert footer.schema_arrow.equals(features_schema())
        assert set(pq.read_table(path)["label"].to_pylist()) == {0, 1, 2}


def test_the_dataset_does_not_depend_on_how_events_were_cut_into_parts(tmp_path: Path) -> None:
    complete = events_table(events(200))
    settings = FeatureSettings(feed_workers=2)
    _, first = run_tasks([complete], settings, tmp_path / "one")
    cut = [complete.slice(150), complete.slice(0, 10), complete.slice(10, 140)]
    _, three = run_tasks([table.combine_chunks() for table in cut], settings, tmp_path / "three")
    assert content(first) == content(three)


def test_written_particles_are_the_kernels_rows_then_exact_zeros(tmp_path: Path) -> None:
    created = events(150)
    settings = FeatureSettings(feed_workers=1)
    _, out = run_tasks([events_table(created)], settings, tmp_path)
    block = build_features(events_table(created), settings)
    for path in out.rglob("*.parquet"):
        table = pq.read_table(path)
        made_inputs = model_inputs(
            table, ["hlf", "particles", "num_particles", "entry", "weight"]
        ).values()
        for hlf, padded, count, entry, weight in zip(*made_inputs, strict=True):
            first, last = block.particle_offsets[entry : entry + 2]
            np.testing.assert_array_equal(padded[:count], particles_of(block)[first:last])
            assert not padded[count:].any()
            np.testing.assert_array_equal(hlf, block.hlf[entry])
            assert weight == created[entry]["weight"]


def test_tasks_and_row_groups_are_bounded_in_bytes_with_more_particles_than_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_tracks, most = 2 * MAX_PARTICLES, 1 << 20
    tracks = [track(5.0 + 0.01 * index, 2.0, 0.001 * index) for index in range(num_tracks)]
    rows = [event_row(file_uuid=FILE, entry=entry, label=entry % 3, electrons=[lepton(40, 0, 0)], tracks=tracks)
            for entry in range(90)]  # fmt: skip
    path = _written(events_table(rows), tmp_path / "a.parquet")
    for name in ("out", "kernels"):
        (tmp_path / name).mkdir()
    gathered_rows = []

    def write(groups: Any, *remainder: Any) -> Any:
        gathered_rows.append(sum(len(group_events.events) for group_events in groups))
        return write_groups(groups, *remainder)

    monkeypatch.setattr(mixing_pass, "GATHERED_BYTES", most)
    monkeypatch.setattr(spark_job, "write_groups", write)
    context: Any = InProcessSpark()
    spark_job.make_features(
        context, [EventsFile("a.parquet", "made", "", str(path))], {"made": GeneratedSample(0, None, 90, 90.0)},
        FeatureSettings(feed_workers=1, max_tracks=100_000), CLASSES, tmp_path / "out",
        kernels=tmp_path / "kernels", event_counter=context.accumulator(0), num_tasks=int,
    )  # fmt: skip
    results = [
        pq.read_table(path)["num_particles"].to_numpy()
        for path in (tmp_path / "out").rglob("*.parquet")
    ]
    assert {group_events for group in results for group_events in group.tolist()} == {
        1 + num_tracks
    }
    bytes_of_one = (1 + num_tracks) * NUM_CORE * 4
    assert max(len(group) for group in results) * bytes_of_one <= most
    assert max(gathered_rows) * bytes_of_one <= most
    # Not smaller than needed either.
    assert max(gathered_rows) * bytes_of_one > most / 2
    assert sum(gathered_rows) == sum(map(len, results)) == 90


def test_an_energy_beyond_float32_rejects_the_event_and_counts_it(tmp_path: Path) -> None:
    created = events(150)
    created[7]["tracks"] = [track(1e5, 85.0, 0.0)]
    blocks, out = run_tasks([events_table(created)], FeatureSettings(feed_workers=1), tmp_path)
    assert blocks[0].counts["rejected_nonfinite_features"] == 1
    assert 7 not in {row["entry"] for rows in content(out).values() for row in rows}


def test_statistics_come_from_the_training_split_only(tmp_path: Path) -> None:
    created = events_table(events(100))
    output = kernels_of(
        _written(created, tmp_path / "a.parquet"), FeatureSettings(), _folder(tmp_path / "unmixed")
    )
    every = np.arange(100)
    table = gather_rows(
        [PickedRows(partial(read_unmixed, output.path(tmp_path)), every, every)], 100
    )
    for index, split in enumerate(SPLITS):
        (tmp_path / split).mkdir()
        written, _ = write_group(index, 0, table, CLASSES, tmp_path)
        assert (written.hlf.rows, written.group.rows) == (100 if split == "train" else 0, 100)


def test_a_split_whose_weights_add_up_to_nothing_is_refused(tmp_path: Path) -> None:
    keys = keys_made_of(events_table(events(300)), tmp_path)
    weight = np.where((keys.split == 2) & (keys.label == 1), -1.0, 1.0).astype(np.float32)
    with pytest.raises(FeatureError, match=r"class ttbar add up to .* on the test split"):
        plan_mixing([keys._replace(weight=weight)], FeatureSettings(feed_workers=1), CLASSES)


def test_downsampling_thins_the_training_split_alone(tmp_path: Path) -> None:
    created = [event for event in events(400) if event["label"] != 2 or event["entry"] % 4 == 2]
    settings = FeatureSettings(feed_workers=1, balance=Balance.DOWNSAMPLE)
    keys = keys_made_of(events_table(created), tmp_path)
    _, out = run_tasks([events_table(created)], settings, tmp_path / "run")
    for index, split in enumerate(SPLITS):
        labels = [
            row["label"]
            for name, rows in content(out).items()
            if name.startswith(split)
            for row in rows
        ]
        counts, bincount_before = (
            np.bincount(labels, minlength=3),
            np.bincount(keys.label[keys.split == index], minlength=3),
        )
        if split == "train":
            assert counts[2] == bincount_before[2]
            assert (abs(counts[:2] - bincount_before[2]) < 5 * np.sqrt(bincount_before[2])).all()
        else:
            assert counts.tolist() == bincount_before.tolist()


def _written(table: pa.Table, path: Path) -> Path:
    pq.write_table(table, path)
    return path


def keys_made_of(table: pa.Table, folder: Path) -> EventKeys:
    output = kernels_of(
        _written(table, folder / "a.parquet"), FeatureSettings(), _folder(folder / "unmixed")
    )
    return event_keys(output.path(folder), FeatureSettings())


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_as_many_rows_are_mixed_at_once_as_memory_holds() -> None:
    assert mixing_pass.rows_in_memory(10 * mixing_pass.GATHERED_BYTES, 1000) == 100
    assert mixing_pass.rows_in_memory(mixing_pass.GATHERED_BYTES // 4, 1000) >= 4000
    # A row that is too large is mixed alone, and files without rows have no size.
    assert mixing_pass.rows_in_memory(5 * mixing_pass.GATHERED_BYTES, 2) == 1
    assert mixing_pass.rows_in_memory(0, 0) == 1
