"""Ingest and features again after files or settings changed: only what is new is made.

The result is that of a fresh run. Every test gets a copy of one finished run folder and its files;
some continue on the Spark that made it.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from uuid import NAMESPACE_URL, uuid5

import pyarrow.parquet as pq
import pytest
from analyses import NAMES, Analysis, write_sample_file
from event_rows import Row, event_row, jet, lepton, tower, track

from pipeline.commands.clean import clean
from pipeline.machine.spark_session import SparkProvider

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

MET, CHANGED_MET = 123.4375, 125.5
UP_TO_DATE = ["ingest: up to date", "features: up to date"]


def event(index: int, shift: int) -> Row:
    """An event that differs from those of another index or shift.

    Every eighth has no lepton at all, every fifth of the others none that is isolated.
    """
    electrons = [lepton(30.0 + index, 0.1, 0.2)]
    pt_beside_lepton = 1.0
    if index % 8 == 0:
        electrons = []
    if index % 5 == 0:
        pt_beside_lepton = 40.0
    met = 20.0 + shift + index
    if index == 1:
        met = MET
    return event_row(
        met=met,
        electrons=electrons,
        tracks=[
            track(pt_beside_lepton, 0.15, 0.25),
            # In a cone of 0.4 about the lepton, but not of 0.3.
            track(3.0, 0.45, 0.2),
            track(2.0 + 0.1 * index, 1.0, -1.0 - 0.01 * index),
        ],
        photons=[tower(5.0, 1.5, 0.01 * index + 0.001 * shift)],
        jets=[jet(40.0 + shift + index, 0.5, 1.0)],
    )


def later(path: Path, change: Callable[[], object] = lambda: None) -> None:
    """Change a file; its time is a second later than before."""
    stat_before = path.stat()
    change()
    os.utime(path, ns=(stat_before.st_atime_ns, stat_before.st_mtime_ns + 10**9))


def change_in_place(path: Path) -> None:
    """Change the MET of one event: UUID, size and number of entries stay the same."""
    file_bytes = path.read_bytes()
    met_bytes = struct.pack(">f", MET)
    assert file_bytes.count(met_bytes) == 1
    changed = file_bytes.replace(met_bytes, struct.pack(">f", CHANGED_MET))
    later(path, lambda: path.write_bytes(changed))


@pytest.fixture(scope="module")
def finished(provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    finished_analysis = Analysis(tmp_path_factory.mktemp("finished"), provider)
    finished_analysis.data.mkdir()
    for label, name in enumerate(NAMES):
        events = [event(index, 100 * label) for index in range(40 - 4 * label)]
        write_sample_file(finished_analysis.data / f"{name}_0.root", events)
    finished_analysis.run()
    return finished_analysis


@pytest.fixture
def on_spark(finished: Analysis, provider: SparkProvider, tmp_path: Path) -> Iterator[Analysis]:
    """A copy of the finished run and its files: moving all files changes nothing."""
    shutil.copytree(finished.data, tmp_path / "data")
    shutil.copytree(finished.run_dir, tmp_path / "run")
    yield Analysis(tmp_path, provider)
    shutil.rmtree(tmp_path)


@pytest.fixture
def analysis(on_spark: Analysis) -> Analysis:
    """The copy without Spark: what runs again does not depend on where the tasks run."""
    return Analysis(on_spark.folder)


def add_file(analysis: Analysis) -> Path:
    events = [event(index, 500) for index in range(40)]
    return write_sample_file(analysis.data / "qcd_1.root", events)


def uuid_of(name: str) -> str:
    return str(uuid5(NAMESPACE_URL, name))


def arrow_files(analysis: Analysis) -> list[Path]:
    """All kernel outputs below the stage `features`."""
    return sorted((analysis.run_dir / "features").rglob("*.arrow"))


def num_reused_kernels(analysis: Analysis) -> int:
    num_reused: int = analysis.counters("features")["kernel_outputs_taken_over"]
    return num_reused


def num_files_read(analysis: Analysis) -> int:
    num_read: int = analysis.counters("ingest")["files_read"]
    return num_read


def counters_of_content(analysis: Analysis) -> dict[str, Any]:
    """The counters of both stages without those that tell how the work was done."""
    ingested = analysis.counters("ingest")
    features = analysis.counters("features")
    del ingested["files_read"]
    del features["kernel_outputs_taken_over"]
    for kernel_output in features["kernel_outputs"]:
        del kernel_output["lies_in"]
    return {"ingest": ingested, "features": features}


def test_moving_and_touching_all_files_and_moving_the_run_folder_changes_nothing(
    analysis: Analysis,
) -> None:
    for path in list(analysis.data.iterdir()):
        later(path)
        path.rename(path.with_name(path.name.replace("_0", "_renamed")))

    assert analysis.run().splitlines()[:-1] == UP_TO_DATE


def test_only_an_added_file_is_read_and_earlier_events_keep_parts_kernels_and_splits(
    on_spark: Analysis,
) -> None:
    splits_before = on_spark.splits()
    kernels_before = on_spark.kernel_files()
    parts_before = on_spark.parts()
    inodes_before = on_spark.inodes("ingest", "events")
    added = add_file(on_spark)

    output = on_spark.run()

    assert f"input added: {added}" in output
    assert "1 files read, 3 reused" in output
    assert "kernels of 3 of 4 parts reused" in output
    assert num_files_read(on_spark) == 1
    assert num_reused_kernels(on_spark) == 3
    assert parts_before.items() <= on_spark.parts().items()
    assert inodes_before.items() <= on_spark.inodes("ingest", "events").items()
    kernels = on_spark.kernel_files()
    assert kernels_before.items() <= kernels.items()
    # One copy of each kernel output, and none in a version.
    assert arrow_files(on_spark) == sorted(kernels.values())
    assert not list(on_spark.folder_of("features").rglob("*.arrow"))
    splits = on_spark.splits()
    assert splits_before.items() <= splits.items()
    new_uuids = {uuid for uuid, _ in splits.keys() - splits_before.keys()}
    assert new_uuids == {uuid_of("qcd_1.root")}


def test_the_result_with_an_added_file_is_that_of_a_fresh_run(on_spark: Analysis) -> None:
    add_file(on_spark)

    on_spark.run()
    fresh = on_spark.fresh()

    assert num_files_read(fresh) == 4
    assert num_reused_kernels(fresh) == 0
    assert counters_of_content(fresh) == counters_of_content(on_spark)
    assert fresh.parts() == on_spark.parts()
    assert fresh.dataset() == on_spark.dataset()
    for name in ("dataset.json", "scaler.json", "cutflow.json"):
        incremental = (on_spark.folder_of("features") / name).read_bytes()
        assert (fresh.folder_of("features") / name).read_bytes() == incremental


def test_clean_removes_kernel_outputs_of_other_features_than_those_in_use(
    analysis: Analysis,
) -> None:
    old_kernels = set(analysis.kernel_files().values())
    analysis.run("features", features={"isolation_cone": 0.4})
    kernels = set(analysis.kernel_files().values())
    assert not kernels & old_kernels
    run_folder = analysis.runner().run_folder

    planned = clean(run_folder, 5, dry_run=True)
    cleaned = clean(run_folder, 5)

    assert cleaned == planned
    (removed,) = planned
    assert {path.parent for path in old_kernels} == {removed.folder}
    assert removed.freed_bytes > 1000
    assert not removed.folder.exists()
    assert arrow_files(analysis) == sorted(kernels)


@pytest.mark.parametrize("is_killed", [False, True], ids=["failed", "killed"])
def test_kernel_outputs_of_a_failed_run_go_at_once_and_of_a_killed_one_with_the_next_run(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    kernels = analysis.kernel_files()

    def fail_after_the_kernels(*_: object) -> NoReturn:
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr("features.distributions.save_histograms", fail_after_the_kernels)
        if is_killed:
            # A killed process removes nothing.
            patch.setattr(
                "pipeline.runs.store.StageStore.remove_unused_kernel_outputs", lambda _: None
            )
        with pytest.raises(RuntimeError, match="on purpose"):
            analysis.run("features", features={"isolation_cone": 0.4})
    num_files_after_failure = len(arrow_files(analysis))
    analysis.run("features", features={"rows_per_group": 10})

    expected = len(kernels)
    if is_killed:
        expected = 2 * len(kernels)
    assert num_files_after_failure == expected
    assert analysis.kernel_files() == kernels
    assert arrow_files(analysis) == sorted(kernels.values())


def test_nothing_of_a_removed_file_is_left_and_nothing_is_read(analysis: Analysis) -> None:
    # A sample needs at least one file, so one is added first.
    parts_before = analysis.parts()
    splits_before = analysis.splits()
    added = add_file(analysis)
    analysis.run()
    added.unlink()

    output = analysis.run()

    assert f"input removed: {added}" in output
    assert num_files_read(analysis) == 0
    assert analysis.parts() == parts_before
    manifest = (analysis.folder_of("ingest") / "manifest.json").read_text()
    assert uuid_of("qcd_1.root") not in manifest
    assert num_reused_kernels(analysis) == len(analysis.kernel_files()) == 3
    assert analysis.splits() == splits_before


def test_a_file_changed_in_place_is_read_again_and_its_kernels_run_again(
    analysis: Analysis,
) -> None:
    path = analysis.data / "ttbar_0.root"
    size_before = path.stat().st_size
    parts_before = analysis.parts()
    change_in_place(path)
    assert path.stat().st_size == size_before

    output = analysis.run()

    assert f"input changed: {path}" in output
    assert num_files_read(analysis) == 1
    assert num_reused_kernels(analysis) == 2
    parts = analysis.parts()
    changed_parts = [name for name in parts_before if parts_before[name] != parts[name]]
    assert {name.rsplit("-", 1)[0] for name in changed_parts} == {uuid_of("ttbar_0.root")}
    events = pq.read_table(analysis.folder_of("ingest") / "events", columns=["met"])
    assert {MET, CHANGED_MET} <= set(events["met"].to_pylist())
    assert analysis.fresh().dataset() == analysis.dataset()
    # It has been read: touching it now changes nothing.
    later(path)
    assert analysis.run().splitlines()[:-1] == UP_TO_DATE


@pytest.mark.parametrize(
    ("change", "num_reused"),
    [({"balance": "downsample"}, 3), ({"isolation_cone": 0.4}, 0)],
    ids=["balance", "isolation_cone"],
)
def test_kernels_run_again_only_for_settings_that_they_depend_on(
    analysis: Analysis, change: dict[str, Any], num_reused: int
) -> None:
    dataset_before = analysis.dataset()

    analysis.run(features=change)

    assert num_reused_kernels(analysis) == num_reused
    assert analysis.dataset() != dataset_before
    assert analysis.fresh(features=change).dataset() == analysis.dataset()


def test_a_deleted_or_cut_kernel_output_is_computed_again(analysis: Analysis) -> None:
    paths = list(analysis.kernel_files().values())
    bytes_before = [path.read_bytes() for path in paths]
    paths[0].unlink()
    paths[1].write_bytes(bytes_before[1][:-100])

    analysis.run("features", features={"rows_per_group": 10})

    assert num_reused_kernels(analysis) == 1
    assert [path.read_bytes() for path in analysis.kernel_files().values()] == bytes_before


def test_a_file_given_to_another_sample_is_read_again(analysis: Analysis) -> None:
    added = add_file(analysis)
    analysis.run("ingest")
    added.rename(analysis.data / "ttbar_1.root")

    analysis.run("ingest")

    assert num_files_read(analysis) == 1
    columns = ["file_uuid", "sample", "label"]
    events = pq.read_table(analysis.folder_of("ingest") / "events", columns=columns).to_pandas()
    moved = events[events["file_uuid"] == uuid_of("qcd_1.root")]
    assert set(moved["sample"]) == {"ttbar"}
    assert set(moved["label"]) == {1}


def test_force_repairs_a_damaged_version_as_its_error_message_promises(analysis: Analysis) -> None:
    name, events_bytes = min(analysis.parts().items())
    events_file = analysis.folder_of("ingest") / "events" / name
    kernel_name, kernel_file = min(analysis.kernel_files().items())
    kernel_bytes = kernel_file.read_bytes()
    for path in (events_file, kernel_file):
        path.write_bytes(bytes(path.stat().st_size))

    analysis.run(force=True)

    assert analysis.parts()[name] == events_bytes
    assert analysis.kernel_files()[kernel_name].read_bytes() == kernel_bytes


def test_an_accepted_version_lends_no_parts_to_the_next(analysis: Analysis) -> None:
    """It was made with another threshold than that for which it is accepted."""
    stricter = {"ingest": {"min_track_pt": 2.5}}
    analysis.config(**stricter)
    runner = analysis.runner()
    first_accepted = runner.accept()
    second_accepted = runner.accept()
    add_file(analysis)

    analysis.run("ingest", **stricter)

    assert first_accepted == ["ingest", "features"]
    assert second_accepted == []
    assert num_files_read(analysis) == 4
    for path in (analysis.folder_of("ingest") / "events").iterdir():
        events = pq.read_table(path)["tracks"].to_pylist()
        assert min(track["pt"] for tracks in events for track in tracks) > 2.5
