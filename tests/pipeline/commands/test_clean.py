"""The versions that `clean` removes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from command_line import SAMPLES, small_config
from disks import disk_at, fill
from published_by_hand import example_manifest, example_model_manifest
from rich.console import Console

from pipeline.commands import clean as clean_module
from pipeline.commands.clean import clean
from pipeline.commands.promote import rollback
from pipeline.config import load_config
from pipeline.run_folder import RunFolder
from pipeline.runs import own_folders
from pipeline.runs.model_registry import Registry
from pipeline.runs.own_folders import claimed
from pipeline.runs.provenance import now
from pipeline.runs.store import StageStore

CHAIN = {
    "ingest": (),
    "features": ("ingest",),
    "train": ("features",),
    "evaluate": ("features", "train"),
}


def publish(store: StageStore | Registry, *, model: str = "", **manifest: object) -> str:
    """Publish a version with 1,000 bytes, and a model of this content; returns its name."""
    folder = store.next_folder("0123456789")
    store.create(folder)
    (folder / "data").write_bytes(b"x" * 1000)
    (folder / "model").mkdir()
    (folder / "model" / "weights.pt").write_text(model)
    make_manifest = example_model_manifest if isinstance(store, Registry) else example_manifest
    return store.commit(folder, make_manifest(store.name, **manifest)).name


def run_night(run_dir: Path) -> dict[str, str]:
    """Publish a new version of every stage, each made from the new ones before it.

    Returns their names.
    """
    names: dict[str, str] = {}
    for stage, sources in CHAIN.items():
        upstream = {source: names[source] for source in sources}
        names[stage] = publish(StageStore(run_dir, stage), upstream=upstream)
    return names


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    return RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))


@pytest.fixture
def run_dir(run_folder: RunFolder) -> Path:
    return run_folder.config.run_dir


def numbers(run_dir: Path, stage: str) -> list[str]:
    """Numbers of the versions of a stage."""
    return [name[:4] for name in StageStore(run_dir, stage).complete()]


def removals_of_log(run_folder: RunFolder) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in run_folder.log.path.read_text().splitlines()]
    return [event for event in events if event["event"] == "version removed"]


def test_the_newest_versions_stay(run_folder: RunFolder, run_dir: Path) -> None:
    for _ in range(5):
        run_night(run_dir)

    removed = clean(run_folder, 2)

    assert len(removed) == 3 * len(CHAIN)
    for version in removed:
        assert version.freed_bytes > 1000
        assert not version.folder.exists()
    for stage in CHAIN:
        assert numbers(run_dir, stage) == ["0004", "0005"]
    assert clean(run_folder, 2) == []
    folders = [event["folder"] for event in removals_of_log(run_folder)]
    assert folders == [str(version.folder) for version in removed]


def test_a_dry_run_names_the_versions_and_removes_none(
    run_folder: RunFolder, run_dir: Path
) -> None:
    for _ in range(3):
        run_night(run_dir)

    planned = clean(run_folder, 2, dry_run=True)

    assert all(version.folder.exists() for version in planned)
    assert clean(run_folder, 2) == planned


def test_the_sources_of_the_versions_in_use_stay(run_folder: RunFolder, run_dir: Path) -> None:
    names = run_night(run_dir)
    # The features are made again and again, and nothing is trained on them.
    for _ in range(3):
        publish(StageStore(run_dir, "features"), upstream={"ingest": names["ingest"]})

    clean(run_folder, 1)

    assert numbers(run_dir, "features") == ["0001", "0004"]
    assert numbers(run_dir, "train") == ["0001"]


def test_the_sources_of_the_model_in_use_stay(run_folder: RunFolder, run_dir: Path) -> None:
    nights = [run_night(run_dir) for _ in range(4)]
    registry = Registry(run_dir, "hlf")
    publish(registry, train=nights[0]["train"], model="d")
    in_use = publish(registry, train=nights[1]["train"], model="d")

    clean(run_folder, 1)

    assert registry.complete() == [in_use]
    for stage in ("ingest", "features", "train"):
        assert numbers(run_dir, stage) == ["0002", "0004"]
    assert numbers(run_dir, "evaluate") == ["0004"]


def test_withdrawn_models_do_not_count_among_the_models_for_rollbacks(
    run_folder: RunFolder, run_dir: Path
) -> None:
    registry = Registry(run_dir, "hlf")
    trainings = [run_night(run_dir)["train"] for _ in range(6)]
    names = [publish(registry, train=training, model=training) for training in trainings]
    for name in names[4:]:
        model = registry.version(name)
        assert model is not None
        registry.withdraw(model, now())
    registry.point_to(names[3])

    clean(run_folder, 3)

    assert registry.complete() == names[1:]
    # Withdrawn models are still known, so that they are not promoted again.
    assert len(registry.withdrawn_digests()) == 2
    # After a rollback, the model in use stays though it is old.
    registry.point_to(names[1])
    clean(run_folder, 1)
    assert {names[1], names[3]} <= set(registry.complete())


def test_each_removal_is_logged_at_once(
    run_folder: RunFolder, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        run_night(run_dir)
    removed: list[str] = []
    remove = own_folders.remove

    def killed_at_the_third(folder: Path) -> None:
        if len(removed) == 3:
            raise KeyboardInterrupt
        remove(folder)
        removed.append(str(folder))

    monkeypatch.setattr(own_folders, "remove", killed_at_the_third)

    with pytest.raises(KeyboardInterrupt):
        clean(run_folder, 1)

    # What the kill left is no version.
    assert numbers(run_dir, "train") == ["0003"]
    events = removals_of_log(run_folder)
    assert [event["folder"] for event in events] == removed
    assert all(event["bytes"] > 1000 for event in events)


def test_shared_files_free_no_space(run_folder: RunFolder, run_dir: Path) -> None:
    files = []
    for _ in range(2):
        version = run_night(run_dir)["features"]
        files.append(run_dir / "features" / version / "data")
    files[1].unlink()
    os.link(*files)

    removed = clean(run_folder, 1)

    freed_bytes = {version.folder.parent.name: version.freed_bytes for version in removed}
    assert freed_bytes["features"] < 1000 < freed_bytes["train"]


def test_interrupted_work_goes_and_results_of_the_user_stay(
    run_folder: RunFolder, run_dir: Path
) -> None:
    run_night(run_dir)
    unfinished = run_dir / "train" / "0002-0123abcd"
    results = [run_dir / "evaluations" / "0001", run_dir / "compare" / "thesis"]
    for folder in (unfinished, *results):
        folder.mkdir(parents=True)

    removed = clean(run_folder, 1)

    assert [version.folder for version in removed] == [unfinished]
    assert not unfinished.exists()
    assert all(folder.exists() for folder in results)


def test_a_full_disk_gets_room(run_folder: RunFolder, run_dir: Path) -> None:
    run_dir.mkdir()
    with disk_at(run_dir, 2):
        for _ in range(2):
            run_night(run_dir)
        (run_dir / ".lock").touch()
        fill(run_dir / "filler")

        removed = clean(run_folder, 1)

        assert len(removed) == len(CHAIN)
        assert numbers(run_dir, "features") == ["0002"]
        (run_dir / "file").write_bytes(bytes(4096))


def test_a_log_that_cannot_be_written_is_one_warning(run_folder: RunFolder, run_dir: Path) -> None:
    output = StringIO()
    for _ in range(2):
        run_night(run_dir)
    (run_dir / "logs").touch()

    removed = clean(RunFolder(run_folder.config, Console(file=output, width=1000)), 1)

    assert len(removed) == len(CHAIN)
    assert output.getvalue().count("warning: ") == 1
    assert "logs" in output.getvalue()


def test_work_that_can_be_continued_stays_on_request(run_folder: RunFolder, run_dir: Path) -> None:
    store = StageStore(run_dir, "train")
    training, broken = run_dir / "train" / "0001-0123abcd", run_dir / "train" / "0002-0123abcd"
    for folder in (training, broken):
        store.create(folder, keep=[training])
    checkpoint = training / "hlf" / "checkpoints" / "1" / "complete.json"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()

    removed_first = clean(run_folder, 1, keep_unfinished=True)
    removed_then = clean(run_folder, 1)

    assert [version.folder for version in removed_first] == [broken]
    assert [version.folder for version in removed_then] == [training]


def test_a_version_that_is_being_written_stays_without_the_lock_too(
    run_folder: RunFolder, run_dir: Path
) -> None:
    names = run_night(run_dir)
    store = StageStore(run_dir, "evaluate")
    running = store.next_folder("0123456789")
    store.create(running)

    with claimed([running]):
        # Nobody holds the run folder.
        assert clean(run_folder, 1) == []
        assert running.exists()
    assert [version.folder for version in clean(run_folder, 1)] == [running]
    assert store.complete() == [names["evaluate"]]


def test_versions_that_a_comparison_reads_stay_with_their_sources(
    run_folder: RunFolder, run_dir: Path
) -> None:
    run_night(run_dir)
    # Other commands have claims of their own.
    other_command = own_folders.keeping_claims
    with RunFolder(run_folder.config, Console(quiet=True)).locked("compare"):
        with other_command():
            run_night(run_dir)
        with other_command():
            assert clean(run_folder, 1, dry_run=True) == clean(run_folder, 1) == []
        for stage in CHAIN:
            assert numbers(run_dir, stage) == ["0001", "0002"]
        # The comparison does not read this night.
        with other_command():
            run_night(run_dir)
        with other_command():
            clean(run_folder, 1)
        assert numbers(run_dir, "features") == ["0001", "0003"]

    clean(run_folder, 1)
    assert numbers(run_dir, "features") == ["0003"]


def test_links_to_an_archive_and_foreign_folders_stay(
    run_folder: RunFolder, run_dir: Path, tmp_path: Path
) -> None:
    first_night, _ = run_night(run_dir), run_night(run_dir)
    link, archive = run_dir / "ingest" / first_night["ingest"], tmp_path / "archive"
    link.rename(archive)
    link.symlink_to(archive)
    foreign = run_dir / "features" / first_night["features"]
    (foreign / own_folders.MARKER).unlink()
    output = StringIO()

    removed = clean(RunFolder(run_folder.config, Console(file=output, width=1000)), 1)

    assert not {link, foreign} & {version.folder for version in removed}
    assert f"note: {foreign} is kept" in output.getvalue()
    assert (foreign / "manifest.json").exists()
    assert (archive / "manifest.json").exists()
    assert link.is_symlink()


def test_a_rollback_orders_versions_by_number(run_folder: RunFolder, run_dir: Path) -> None:
    registry = Registry(run_dir, "hlf")
    (registry.folder / "9998-00000000").mkdir(parents=True)
    promoted = "2026-01-01T00:00:00+00:00"
    version_9999 = publish(registry, model="a", promoted=promoted)
    version_10000 = publish(registry, model="b", promoted=promoted)

    assert rollback(run_folder, "hlf") == (version_10000, version_9999)


def test_a_version_that_is_claimed_after_the_check_of_claims_stays_with_its_sources(
    run_folder: RunFolder, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_night, _ = run_night(run_dir), run_night(run_dir)
    training = run_dir / "train" / first_night["train"]
    list_removable = clean_module._removable_folders

    with ExitStack() as reader:

        def list_then_claim(*arguments: Any) -> list[Path]:
            folders = list_removable(*arguments)
            if training in folders:
                reader.enter_context(claimed([training]))
            return folders

        with monkeypatch.context() as patch:
            patch.setattr(clean_module, "_removable_folders", list_then_claim)
            removed = clean(run_folder, 1)

        assert (training / "data").exists()
        assert [version.folder.parent.name for version in removed] == ["evaluate"]
        for stage in ("ingest", "features", "train"):
            assert numbers(run_dir, stage) == ["0001", "0002"]

    clean(run_folder, 1)
    assert numbers(run_dir, "train") == ["0002"]


def test_a_claim_during_a_removal_waits_for_its_end(
    run_folder: RunFolder, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_night, _ = run_night(run_dir), run_night(run_dir)
    training = run_dir / "train" / first_night["train"]
    seen: list[bool] = []

    def read_version() -> None:
        with claimed([training]):
            seen.append((training / "data").exists())

    reader = threading.Thread(target=read_version)
    remove = StageStore.remove

    def remove_beside_reader(store: StageStore, folders: Collection[Path], **options: Any) -> None:
        if training in folders:
            reader.start()
            reader.join(0.3)
            # Nothing is removed yet, but the reader cannot rely on it.
            assert seen == []
        remove(store, folders, **options)

    monkeypatch.setattr(StageStore, "remove", remove_beside_reader)
    clean(run_folder, 1)
    reader.join()

    assert seen == [False]
