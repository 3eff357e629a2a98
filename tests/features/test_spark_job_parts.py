"""The tasks of the features job, run here without Spark."""

from __future__ import annotations

import uuid
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
from features.unmixed_files import read_columns

CLASSES = ["QCD", "ttbar", "W+jets"]
FILE_UUID = str(uuid.UUID(int=5))


def random_events(num_events: int) -> list[Row]:
    """Events of all classes in turn, each with an electron and random candidates."""
    rng = np.random.default_rng(1)
    events = []
    for entry in range(num_events):
        num_tracks = rng.integers(0, 30)
        track_momenta = rng.uniform([0.6, -2, -3], [9, 2, 3], (num_tracks, 3))
        tracks = [track(*momentum) for momentum in track_momenta]
        num_photons = rng.integers(0, 10)
        photon_momenta = rng.uniform([1.1, -2, -3], [9, 2, 3], (num_photons, 3))
        photons = [tower(*momentum) for momentum in photon_momenta]
        event = event_row(
            file_uuid=FILE_UUID,
            entry=entry,
            label=entry % 3,
            electrons=[lepton(40 + entry % 7, 0, 0)],
            tracks=tracks,
            photons=photons,
            weight=1.0 + entry % 2,
        )
        events.append(event)
    return events


def write_events(table: pa.Table, path: Path) -> Path:
    pq.write_table(table, path, row_group_size=70)
    return path


def run_kernel_task(events_path: Path, settings: FeatureSettings, folder: Path) -> KernelOutput:
    folder.mkdir(parents=True, exist_ok=True)
    events_file = EventsFile(events_path.name, "made", "digest", str(events_path))
    return run_kernels(events_file, settings, folder)


def run_tasks(
    tables: list[pa.Table], settings: FeatureSettings, folder: Path
) -> tuple[list[KernelOutput], Path]:
    """The outputs of the kernels, and the folder of the dataset, in splits."""
    dataset = folder / "out"
    for split in SPLITS:
        (dataset / split).mkdir(parents=True)
    outputs = []
    keys = []
    files = []
    first_row = 0
    for index, table in enumerate(tables):
        events_path = write_events(table, folder / f"part-{index}.parquet")
        output = run_kernel_task(events_path, settings, folder / "unmixed")
        path = output.path(folder)
        outputs.append(output)
        keys.append(event_keys(path, settings))
        files.append(KernelFile(str(path), first_row, 1.0))
        first_row += output.counts["selected"]
    for groups in plan_mixing(keys, settings, CLASSES).tasks(max_events=50):
        write_groups(groups, files, CLASSES, dataset)
    return outputs, dataset


def rows_by_file(dataset: Path) -> dict[str, list[Row]]:
    paths = sorted(dataset.rglob("*.parquet"))
    rows = {}
    for path in paths:
        name = str(path.relative_to(dataset))
        rows[name] = pq.read_table(path).to_pylist()
    return rows


def all_rows(dataset: Path) -> list[Row]:
    return pa.concat_tables(map(pq.read_table, dataset.rglob("*.parquet"))).to_pylist()


def keys_of_events(events: list[Row], folder: Path) -> EventKeys:
    events_path = write_events(events_table(events), folder / "events.parquet")
    output = run_kernel_task(events_path, FeatureSettings(), folder / "unmixed")
    return event_keys(output.path(folder), FeatureSettings())


@pytest.mark.slow
def test_every_selected_event_is_in_exactly_one_row_group(tmp_path: Path) -> None:
    table = events_table(random_events(300))

    (output,), dataset = run_tasks([table], FeatureSettings(feed_workers=2), tmp_path)

    assert sorted(row["entry"] for row in all_rows(dataset)) == list(range(300))
    assert output.counts == {
        "events": 300,
        **dict.fromkeys(OUTCOMES, 0),
        "selected": 300,
        "leptons_without_own_track": 300,
    }


@pytest.mark.parametrize("particles", [True, False])
def test_leptons_without_their_own_track_are_counted_and_explained(
    tmp_path: Path, particles: bool
) -> None:
    events = []
    for entry, track_distance in enumerate([0.0, 2e-4, 2e-4]):
        tracks = [track(40.0, 0.5, 0.1 + track_distance)]
        events.append(event_row(entry=entry, electrons=[lepton(40.0, 0.5, 0.1)], tracks=tracks))
    events_path = write_events(events_table(events), tmp_path / "events.parquet")

    output = run_kernel_task(events_path, FeatureSettings(particles=particles), tmp_path)

    assert output.counts["selected"] == 1
    assert output.counts[LACKS_OWN_TRACK] == 2
    hint = track_hint("made", output.counts)
    assert "In 2 of 3 events of 'made' no track is within features.own_track_dr" in hint
    counts_of_few = {**output.counts, LACKS_OWN_TRACK: 1}
    assert track_hint("made", counts_of_few) == ""


def test_files_have_the_schema_one_row_group_each_and_mixed_classes(tmp_path: Path) -> None:
    table = events_table(random_events(300))

    _, dataset = run_tasks([table], FeatureSettings(feed_workers=4), tmp_path)

    for path in dataset.rglob("*.parquet"):
        footer = pq.ParquetFile(path)
        assert footer.num_row_groups == 1
        assert footer.schema_arrow.equals(features_schema())
        assert set(pq.read_table(path)["label"].to_pylist()) == {0, 1, 2}


def test_the_dataset_does_not_depend_on_how_events_are_cut_into_parts(tmp_path: Path) -> None:
    table = events_table(random_events(200))
    slices = [table.slice(150), table.slice(0, 10), table.slice(10, 140)]
    cut_tables = [events.combine_chunks() for events in slices]
    settings = FeatureSettings(feed_workers=2)

    _, uncut = run_tasks([table], settings, tmp_path / "uncut")
    _, cut = run_tasks(cut_tables, settings, tmp_path / "cut")

    assert rows_by_file(uncut) == rows_by_file(cut)


def test_written_particles_are_the_rows_of_the_kernels_and_then_zeros(tmp_path: Path) -> None:
    events = random_events(150)
    settings = FeatureSettings(feed_workers=1)
    block = build_features(events_table(events), settings)
    expected_particles = particles_of(block)

    _, dataset = run_tasks([events_table(events)], settings, tmp_path)

    names = ["hlf", "particles", "num_particles", "entry", "weight"]
    for path in dataset.rglob("*.parquet"):
        inputs = model_inputs(pq.read_table(path), names)
        for hlf, matrix, count, entry, weight in zip(*inputs.values(), strict=True):
            start, stop = block.particle_offsets[entry : entry + 2]
            np.testing.assert_array_equal(matrix[:count], expected_particles[start:stop])
            assert not matrix[count:].any()
            np.testing.assert_array_equal(hlf, block.hlf[entry])
            assert weight == events[entry]["weight"]


def test_tasks_and_row_groups_are_bounded_in_bytes_with_more_particles_than_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_tracks, max_bytes = 2 * MAX_PARTICLES, 1 << 20
    event_bytes = (1 + num_tracks) * NUM_CORE * 4
    tracks = [track(5.0 + 0.01 * index, 2.0, 0.001 * index) for index in range(num_tracks)]
    event = event_row(file_uuid=FILE_UUID, electrons=[lepton(40, 0, 0)], tracks=tracks)
    events = [event | {"entry": entry, "label": entry % 3} for entry in range(90)]
    events_path = write_events(events_table(events), tmp_path / "events.parquet")
    (tmp_path / "out").mkdir()
    (tmp_path / "kernels").mkdir()
    rows_of_tasks = []

    def write_and_count(groups: Any, *arguments: Any) -> Any:
        rows_of_tasks.append(sum(len(group.rows) for group in groups))
        return write_groups(groups, *arguments)

    monkeypatch.setattr(mixing_pass, "GATHERED_BYTES", max_bytes)
    monkeypatch.setattr(spark_job, "write_groups", write_and_count)
    spark: Any = InProcessSpark()
    events_file = EventsFile("events.parquet", "made", "", str(events_path))
    sample = GeneratedSample(0, None, 90, 90.0)
    settings = FeatureSettings(feed_workers=1, max_tracks=100_000)

    spark_job.make_features(
        spark,
        [events_file],
        {"made": sample},
        settings,
        CLASSES,
        tmp_path / "out",
        kernels=tmp_path / "kernels",
        event_counter=spark.accumulator(0),
        num_tasks=int,
    )

    rows_of_groups = []
    for path in (tmp_path / "out").rglob("*.parquet"):
        num_particles = pq.read_table(path)["num_particles"].to_pylist()
        assert set(num_particles) == {1 + num_tracks}
        rows_of_groups.append(len(num_particles))
    assert max(rows_of_groups) * event_bytes <= max_bytes
    # Tasks are not smaller than needed either.
    assert max_bytes / 2 < max(rows_of_tasks) * event_bytes <= max_bytes
    assert sum(rows_of_tasks) == sum(rows_of_groups) == 90


def test_an_energy_beyond_float32_rejects_the_event_and_counts_it(tmp_path: Path) -> None:
    events = random_events(150)
    events[7]["tracks"] = [track(1e5, 85.0, 0.0)]

    (output,), dataset = run_tasks(
        [events_table(events)], FeatureSettings(feed_workers=1), tmp_path
    )

    assert output.counts["rejected_nonfinite_features"] == 1
    assert 7 not in {row["entry"] for row in all_rows(dataset)}


@pytest.mark.parametrize("split", range(3), ids=SPLITS)
def test_statistics_come_from_the_training_split_only(tmp_path: Path, split: int) -> None:
    events_path = write_events(events_table(random_events(100)), tmp_path / "events.parquet")
    output = run_kernel_task(events_path, FeatureSettings(), tmp_path / "unmixed")
    row_numbers = np.arange(100)
    path = output.path(tmp_path)
    picked = PickedRows(path, 1.0, row_numbers, row_numbers)
    columns = read_columns(path, ["num_particles"])
    rows = gather_rows([picked], columns["num_particles"].to_numpy())
    (tmp_path / SPLITS[split]).mkdir()

    written, _ = write_group(split, 0, rows, CLASSES, tmp_path)

    expected_rows = {"train": 100, "val": 0, "test": 0}
    assert written.group.rows == 100
    assert written.hlf.rows == expected_rows[SPLITS[split]]


def test_a_split_whose_weights_add_up_to_nothing_is_refused(tmp_path: Path) -> None:
    keys = keys_of_events(random_events(300), tmp_path)
    is_ttbar_in_test = (keys.split == 2) & (keys.label == 1)
    weight = np.where(is_ttbar_in_test, -1.0, 1.0)

    with pytest.raises(FeatureError, match=r"class ttbar add up to .* on the test split"):
        plan_mixing([keys._replace(weight=weight)], FeatureSettings(feed_workers=1), CLASSES)


def test_downsampling_thins_the_training_split_alone(tmp_path: Path) -> None:
    def is_used(event: Row) -> bool:
        """All events of two classes and a quarter of those of the third."""
        return event["label"] != 2 or event["entry"] % 4 == 2

    events = [event for event in random_events(400) if is_used(event)]
    keys = keys_of_events(events, tmp_path)
    settings = FeatureSettings(feed_workers=1, balance=Balance.DOWNSAMPLE)

    _, dataset = run_tasks([events_table(events)], settings, tmp_path / "run")

    for split, name in enumerate(SPLITS):
        labels = [row["label"] for row in all_rows(dataset / name)]
        counts = np.bincount(labels, minlength=3)
        selected_counts = np.bincount(keys.label[keys.split == split], minlength=3)
        if name == "train":
            smallest = selected_counts[2]
            assert counts[2] == smallest
            five_deviations = 5 * np.sqrt(smallest)
            assert (abs(counts[:2] - smallest) < five_deviations).all()
        else:
            assert counts.tolist() == selected_counts.tolist()


def test_as_many_rows_are_mixed_at_once_as_memory_holds() -> None:
    max_bytes = mixing_pass.GATHERED_BYTES

    assert mixing_pass.rows_in_memory(10 * max_bytes, 1000) == 100
    assert mixing_pass.rows_in_memory(max_bytes // 4, 1000) >= 4000
    # A row that is too large is mixed alone, and files without rows have no size.
    assert mixing_pass.rows_in_memory(5 * max_bytes, 2) == 1
    assert mixing_pass.rows_in_memory(0, 0) == 1
