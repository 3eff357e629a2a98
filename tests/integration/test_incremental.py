"""Ingest and features again after files or settings changed: only what is new is made, and the result is that of a
fresh run.

Every test gets a copy of one finished run folder and its files; some continue on the Spark that
made it.
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

MET, OTHER_MET = 123.4375, 125.5


def events(first: int, *, count: int = 40) -> list[Row]:
    """Events that all differ; every eighth has no lepton at all, every fifth of the others none that is isolated."""
    return [
        event_row(
            met=MET if n == 1 else 20.0 + first + n,
            electrons=[] if n % 8 == 0 else [lepton(30.0 + n, 0.1, 0.2)],
            # One beside the lepton, one in a cone of 0.4 about it but not of 0.3, one far away.
            tracks=[
                track(40.0 if n % 5 == 0 else 1.0, 0.15, 0.25),
                track(3.0, 0.45, 0.2),
                track(2.0 + 0.1 * n, 1.0, -1.0 - 0.01 * n),
            ],
            photons=[tower(5.0, 1.5, 0.01 * n + 0.001 * first)],
            jets=[jet(40.0 + first + n, 0.5, 1.0)],
        )
        for n in range(count)
    ]


def later(path: Path, change: Callable[[], object] = lambda: None) -> None:
    """Do something to a file, after which its time is another for sure."""
    stat_before = path.stat()
    change()
    os.utime(path, ns=(stat_before.st_atime_ns, stat_before.st_mtime_ns + 10**9))


def change_in_place(path: Path) -> None:
    """Another MET in one event: the same UUID, size and number of entries."""
    file_bytes = path.read_bytes()
    old, new = struct.pack(">f", MET), struct.pack(">f", OTHER_MET)
    assert file_bytes.count(old) == 1
    later(path, lambda: path.write_bytes(file_bytes.replace(old, new)))


@pytest.fixture(scope="module")
def finished(provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    created = Analysis(tmp_path_factory.mktemp("finished"), provider)
    created.data.mkdir()
    for index, name in enumerate(NAMES):
        write_sample_file(
            created.data / f"{name}_0.root", events(100 * index, count=40 - 4 * index)
        )
    created.run()
    return created


@pytest.fixture
def on_spark(finished: Analysis, provider: SparkProvider, tmp_path: Path) -> Iterator[Analysis]:
    """A copy of what was made: moving all files changes nothing."""
    for name in ("data", "run"):
        shutil.copytree(getattr(finished, name.replace("run", "run_dir")), tmp_path / name)
    yield Analysis(tmp_path, provider)
    shutil.rmtree(tmp_path)


@pytest.fixture
def analysis(on_spark: Analysis) -> Analysis:
    """The same without Spark: what runs again does not depend on where the tasks run."""
    return Analysis(on_spark.folder)


def add_file(analysis: Analysis) -> Path:
    return write_sample_file(analysis.data / "qcd_1.root", events(500))


def uuid_of(name: str) -> str:
    return str(uuid5(NAMESPACE_URL, name))


def test_moving_and_touching_all_files_and_moving_the_run_folder_changes_nothing(
    analysis: Analysis,
) -> None:
    for path in list(analysis.data.iterdir()):
        later(path)
        path.rename(path.with_name(path.name.replace("_0", "_renamed")))
    displayed = analysis.run()
    assert displayed.splitlines()[:-1] == ["ingest: up to date", "features: up to date"]


def test_only_an_added_file_is_read_and_the_result_is_that_of_a_fresh_run(
    on_spark: Analysis,
) -> None:
    splits, kernels = on_spark.splits(), on_spark.kernel_files()
    old_parts, old_inodes = on_spark.parts(), on_spark.inodes("ingest", "events")
    added = add_file(on_spark)
    displayed = on_spark.run()
    assert f"input added: {added}" in displayed
    assert "1 files read, 3 reused" in displayed
    chunks, inodes = on_spark.parts(), on_spark.inodes("ingest", "events")
    assert {name: chunks[name] for name in old_parts} == old_parts
    assert {name: inodes[name] for name in old_inodes} == old_inodes
    assert "kernels of 3 of 4 parts reused" in displayed
    assert on_spark.counters("features")["kernel_outputs_taken_over"] == 3
    kernel_files_after = on_spark.kernel_files()
    assert {name: kernel_files_after[name] for name in kernels} == kernels
    # One copy of each, and none in a version.
    assert sorted(kernel_files_after.values()) == sorted(
        (on_spark.run_dir / "features").rglob("*.arrow")
    )
    assert not list(on_spark.folder_of("features").rglob("*.arrow"))
    # Events keep their split; those of the new file come in addition.
    new = on_spark.splits()
    assert {key: new[key] for key in splits} == splits
    assert {uuid for uuid, _ in new.keys() - splits.keys()} == {uuid_of("qcd_1.root")}
    fresh = on_spark.fresh()
    assert fresh.parts() == chunks
    assert (on_spark.counters("ingest")["files_read"], fresh.counters("ingest")["files_read"]) == (
        1,
        4,
    )
    assert {**on_spark.counters("ingest"), "files_read": 4} == fresh.counters("ingest")
    assert fresh.counters("features")["kernel_outputs_taken_over"] == 0
    assert fresh.dataset() == on_spark.dataset()
    for name in ("dataset.json", "scaler.json", "cutflow.json"):
        assert (fresh.folder_of("features") / name).read_bytes() == (
            on_spark.folder_of("features") / name
        ).read_bytes()
    incremental, anew = on_spark.counters("features"), fresh.counters("features")
    for kernel_output in incremental["kernel_outputs"] + anew["kernel_outputs"]:
        del kernel_output["lies_in"]
    assert {**incremental, "kernel_outputs_taken_over": 0} == anew


def test_clean_removes_kernel_outputs_that_the_features_in_use_were_not_made_from(
    analysis: Analysis,
) -> None:
    kernel_files_before = analysis.kernel_files()
    analysis.run("features", features={"isolation_cone": 0.4})
    kernel_files_after = analysis.kernel_files()
    assert not set(kernel_files_before.values()) & set(kernel_files_after.values())
    run_folder = analysis.runner().run_folder
    planned = clean(run_folder, 5, dry_run=True)
    assert [version.folder for version in planned] == [
        next(iter(kernel_files_before.values())).parent
    ]
    assert planned[0].freed_bytes > 1000
    assert clean(run_folder, 5) == planned
    assert not planned[0].folder.exists()
    assert sorted(kernel_files_after.values()) == sorted(
        (analysis.run_dir / "features").rglob("*.arrow")
    )


@pytest.mark.parametrize("is_killed", [False, True], ids=["failed", "killed"])
def test_kernel_outputs_of_a_run_that_did_not_end_go_at_once_or_with_the_next(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    kernel_files_before = analysis.kernel_files()

    def failing(*_: object) -> NoReturn:
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        # When the kernels have run.
        patch.setattr("features.distributions.save_histograms", failing)
        if is_killed:
            # A killed process removes nothing.
            patch.setattr(
                "pipeline.runs.store.StageStore.remove_unused_kernel_outputs", lambda _: None
            )
        with pytest.raises(RuntimeError, match="on purpose"):
            analysis.run("features", features={"isolation_cone": 0.4})
    leftovers = list((analysis.run_dir / "features").rglob("*.arrow"))
    assert len(leftovers) == (1 + is_killed) * len(kernel_files_before)
    analysis.run("features", features={"rows_per_group": 10})
    assert analysis.kernel_files() == kernel_files_before
    assert sorted(kernel_files_before.values()) == sorted(
        (analysis.run_dir / "features").rglob("*.arrow")
    )


def test_a_removed_file_leaves_nothing_behind_and_nothing_is_read(analysis: Analysis) -> None:
    # A sample needs at least one file, so one is added first.
    added = add_file(analysis)
    parts_before, splits = analysis.parts(), analysis.splits()
    analysis.run()
    added.unlink()
    displayed = analysis.run()
    assert f"input removed: {added}" in displayed
    assert analysis.counters("ingest")["files_read"] == 0
    assert analysis.parts() == parts_before
    assert uuid_of("qcd_1.root") not in (analysis.folder_of("ingest") / "manifest.json").read_text()
    assert analysis.counters("features")["kernel_outputs_taken_over"] == 3
    assert len(analysis.kernel_files()) == 3
    assert analysis.splits() == splits


def test_a_file_changed_in_place_is_read_again_and_its_kernels_run_again(
    analysis: Analysis,
) -> None:
    path = analysis.data / "ttbar_0.root"
    stat_before, chunks = path.stat(), analysis.parts()
    change_in_place(path)
    assert path.stat().st_size == stat_before.st_size
    displayed = analysis.run()
    assert f"input changed: {path}" in displayed
    assert analysis.counters("ingest")["files_read"] == 1
    parts_after = analysis.parts()
    assert {name.rsplit("-", 1)[0] for name in chunks if chunks[name] != parts_after[name]} == {
        uuid_of("ttbar_0.root")
    }
    assert analysis.counters("features")["kernel_outputs_taken_over"] == 2
    met = {
        row["met"]
        for row in pq.read_table(
            analysis.folder_of("ingest") / "events", columns=["met"]
        ).to_pylist()
    }
    assert {MET, OTHER_MET} <= met
    assert analysis.fresh().dataset() == analysis.dataset()
    # It has been read: touching it now changes nothing.
    later(path)
    assert analysis.run().splitlines()[:-1] == ["ingest: up to date", "features: up to date"]


@pytest.mark.parametrize(
    ("change", "taken_over"),
    [
        ({"balance": "downsample"}, 3),
        ({"isolation_cone": 0.4}, 0),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_kernels_run_again_only_for_settings_that_they_depend_on(
    analysis: Analysis, change: dict[str, Any], taken_over: int
) -> None:
    dataset_before = analysis.dataset()
    analysis.run(features=change)
    assert analysis.counters("features")["kernel_outputs_taken_over"] == taken_over
    fresh = analysis.fresh(features=change)
    assert fresh.dataset() == analysis.dataset()
    assert analysis.dataset() != dataset_before


def test_a_kernel_file_that_was_deleted_or_cut_is_made_again(analysis: Analysis) -> None:
    first, second, _ = kernels = analysis.kernel_files()
    contents = [path.read_bytes() for path in kernels.values()]
    kernels[first].unlink()
    kernels[second].write_bytes(contents[1][:-100])
    analysis.run("features", features={"rows_per_group": 10})
    assert analysis.counters("features")["kernel_outputs_taken_over"] == 1
    assert [path.read_bytes() for path in analysis.kernel_files().values()] == contents


def test_a_file_given_to_another_sample_is_read_again(analysis: Analysis) -> None:
    add_file(analysis)
    analysis.run("ingest")
    (analysis.data / "qcd_1.root").rename(analysis.data / "ttbar_1.root")
    analysis.run("ingest")
    assert analysis.counters("ingest")["files_read"] == 1
    table = pq.read_table(
        analysis.folder_of("ingest") / "events", columns=["file_uuid", "sample", "label"]
    )
    moved = [row for row in table.to_pylist() if row["file_uuid"] == uuid_of("qcd_1.root")]
    assert {(row["sample"], row["label"]) for row in moved} == {("ttbar", 1)}


def test_force_repairs_a_damaged_version_as_its_error_message_promises(analysis: Analysis) -> None:
    (damaged, *_) = sorted((analysis.folder_of("ingest") / "events").iterdir())
    kernels, document = next(iter(analysis.kernel_files().values())), damaged.read_bytes()
    file_bytes = kernels.read_bytes()
    for path in (damaged, kernels):
        path.write_bytes(bytes(path.stat().st_size))
    analysis.run(force=True)
    assert (analysis.folder_of("ingest") / "events" / damaged.name).read_bytes() == document
    assert next(iter(analysis.kernel_files().values())).read_bytes() == file_bytes


def test_what_was_accepted_is_not_mixed_with_what_is_read_anew(analysis: Analysis) -> None:
    # A version made with one threshold, blessed as one of another, must not lend its parts to the
    # next.
    stricter = {"ingest": {"min_track_pt": 2.5}}
    analysis.config(**stricter)
    runner = analysis.runner()
    assert runner.accept() == ["ingest", "features"]
    assert runner.accept() == []
    add_file(analysis)
    analysis.run("ingest", **stricter)
    assert analysis.counters("ingest")["files_read"] == 4
    for path in (analysis.folder_of("ingest") / "events").iterdir():
        retained = [
            each["pt"] for tracks in pq.read_table(path)["tracks"].to_pylist() for each in tracks
        ]
        assert min(retained) > 2.5
