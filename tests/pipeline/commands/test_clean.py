"""Which versions `clean` removes."""

from __future__ import annotations

import json
import os
from io import StringIO
from pathlib import Path

import pytest
from command_line import SAMPLES, small_config
from published_by_hand import example_manifest, example_model_manifest
from rich.console import Console

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
    """A version that holds something, and a model of this content."""
    folder = store.next_folder("0123456789")
    store.create(folder)
    (folder / "data").write_bytes(b"x" * 1000)
    (folder / "model").mkdir()
    (folder / "model" / "weights.pt").write_text(model)
    expected = example_model_manifest if isinstance(store, Registry) else example_manifest
    return store.commit(folder, expected(store.name, **manifest)).name


def night(run_dir: Path) -> dict[str, str]:
    """A new version of every stage, each made from the new ones before it."""
    created: dict[str, str] = {}
    for stage, sources in CHAIN.items():
        created[stage] = publish(
            StageStore(run_dir, stage), upstream={source: created[source] for source in sources}
        )
    return created


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    return RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))


def left(run_dir: Path, stage: str) -> list[str]:
    return [name[:4] for name in StageStore(run_dir, stage).complete()]


def test_the_newest_stay(run_folder: RunFolder) -> None:
    run_dir = run_folder.config.run_dir
    for _ in range(5):
        night(run_dir)
    planned = clean(run_folder, 2, dry_run=True)
    assert all(version.folder.exists() for version in planned)
    removed = clean(run_folder, 2)
    assert removed == planned
    assert {stage: left(run_dir, stage) for stage in CHAIN} == {
        key: ["0004", "0005"] for key in CHAIN
    }
    assert len(removed) == 3 * len(CHAIN)
    assert all(version.freed_bytes > 1000 and not version.folder.exists() for version in removed)
    assert clean(run_folder, 2) == []
    logged = [json.loads(line) for line in run_folder.log.path.read_text().splitlines()]
    assert [line["folder"] for line in logged if line["event"] == "version removed"] == [
        str(version.folder) for version in removed
    ]


def test_what_the_versions_in_use_were_made_from_stays(run_folder: RunFolder) -> None:
    run_dir = run_folder.config.run_dir
    night(run_dir)
    # The features are made again and again, and nothing is trained on them.
    for _ in range(3):
        publish(StageStore(run_dir, "features"), upstream={"ingest": left_name(run_dir, "ingest")})
    clean(run_folder, 1)
    assert left(run_dir, "features") == ["0001", "0004"]
    assert left(run_dir, "train") == ["0001"]


def left_name(run_dir: Path, stage: str) -> str:
    return StageStore(run_dir, stage).complete()[-1]


def test_the_model_in_use_keeps_all_that_it_came_from(run_folder: RunFolder) -> None:
    run_dir = run_folder.config.run_dir
    nights = [night(run_dir) for _ in range(4)]
    registry = Registry(run_dir, "hlf")
    for each in nights[:2]:
        publish(registry, train=each["train"], model="d")
    clean(run_folder, 1)
    assert registry.complete() == [registry.current().name]  # type: ignore[union-attr]
    for stage in ("ingest", "features", "train"):
        assert left(run_dir, stage) == ["0002", "0004"]
    assert left(run_dir, "evaluate") == ["0004"]


def test_withdrawn_models_do_not_take_the_place_of_those_that_a_rollback_goes_to(
    run_folder: RunFolder,
) -> None:
    run_dir = run_folder.config.run_dir
    registry = Registry(run_dir, "hlf")
    names = [
        publish(registry, train=night(run_dir)["train"], model=str(position))
        for position in range(6)
    ]
    for name in names[4:]:
        model = registry.version(name)
        assert model is not None
        registry.withdraw(model, now())
    registry.point_to(names[3])
    clean(run_folder, 3)
    assert registry.complete() == names[1:]
    # What was withdrawn is still known, so that it is not promoted again.
    assert len(registry.withdrawn_digests()) == 2
    # After a rollback, the model in use stays though it is old.
    registry.point_to(names[1])
    clean(run_folder, 1)
    assert {names[1], names[3]} <= set(registry.complete())


def test_a_removal_was_logged_only_after_the_last_one(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        night(run_folder.config.run_dir)
    removed: list[Path] = []
    remove = own_folders.remove

    def killed_at_the_third(folder: Path) -> None:
        if len(removed) == 3:
            raise KeyboardInterrupt
        remove(folder)
        removed.append(folder)

    monkeypatch.setattr(own_folders, "remove", killed_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        clean(run_folder, 1)
    # What the kill left is no version.
    assert left(run_folder.config.run_dir, "features") == ["0003"]
    lines = [json.loads(line) for line in run_folder.log.path.read_text().splitlines()]
    assert [line["folder"] for line in lines if line["event"] == "version removed"] == list(
        map(str, removed)
    )
    assert all(line["bytes"] > 1000 for line in lines)


def test_shared_files_free_no_space(run_folder: RunFolder) -> None:
    run_dir = run_folder.config.run_dir
    first, second = night(run_dir), night(run_dir)
    (run_dir / "features" / second["features"] / "data").unlink()
    os.link(
        run_dir / "features" / first["features"] / "data",
        run_dir / "features" / second["features"] / "data",
    )
    freed = {version.folder.parent.name: version.freed_bytes for version in clean(run_folder, 1)}
    assert freed["features"] < 1000 < freed["train"]


def test_interrupted_work_goes_and_results_of_the_user_are_left_alone(
    run_folder: RunFolder,
) -> None:
    run_dir = run_folder.config.run_dir
    night(run_dir)
    unfinished = run_dir / "train" / "0002-0123abcd"
    for folder in (unfinished, run_dir / "evaluations" / "0001", run_dir / "compare" / "thesis"):
        folder.mkdir(parents=True)
    assert unfinished in [version.folder for version in clean(run_folder, 1, dry_run=True)]
    assert unfinished.exists()
    clean(run_folder, 1)
    assert not unfinished.exists()
    assert (run_dir / "evaluations" / "0001").exists()
    assert (run_dir / "compare" / "thesis").exists()


def test_a_version_that_is_being_written_stays_whatever_became_of_the_lock(
    run_folder: RunFolder,
) -> None:
    run_dir = run_folder.config.run_dir
    created = night(run_dir)
    store = StageStore(run_dir, "evaluate")
    running = store.next_folder("0123456789")
    store.create(running)
    with claimed([running]):
        # Nobody holds the run folder.
        assert clean(run_folder, 1) == []
        assert running.exists()
    assert [version.folder for version in clean(run_folder, 1)] == [running]
    assert left(run_dir, "evaluate") == [created["evaluate"][:4]]


def test_versions_that_a_comparison_reads_stay_with_what_they_were_made_from(
    run_folder: RunFolder,
) -> None:
    run_dir = run_folder.config.run_dir
    night(run_dir)
    with RunFolder(run_folder.config, Console(quiet=True)).locked("compare"):
        night(run_dir)
        assert clean(run_folder, 1, dry_run=True) == clean(run_folder, 1) == []
        assert {stage: left(run_dir, stage) for stage in CHAIN} == {
            key: ["0001", "0002"] for key in CHAIN
        }
        # A night that the comparison does not read.
        night(run_dir)
        clean(run_folder, 1)
        assert left(run_dir, "features") == ["0001", "0003"]
    clean(run_folder, 1)
    assert left(run_dir, "features") == ["0003"]


def test_links_to_an_archive_and_foreign_folders_are_left_alone(
    run_folder: RunFolder, tmp_path: Path
) -> None:
    run_dir = run_folder.config.run_dir
    nights = [night(run_dir) for _ in range(2)]
    old, archive = run_dir / "ingest" / nights[0]["ingest"], tmp_path / "archive"
    old.rename(archive)
    old.symlink_to(archive)
    # Nor is a folder that this code has not made.
    foreign = run_dir / "features" / nights[0]["features"]
    (foreign / own_folders.MARKER).unlink()
    output = StringIO()
    for _ in range(2):
        results = clean(RunFolder(run_folder.config, Console(file=output, width=1000)), 1)
        assert not {old, foreign} & {result.folder for result in results}
        assert (foreign / "manifest.json").exists()
        assert f"note: {foreign} is kept" in output.getvalue()
        assert (archive / "manifest.json").exists()
        assert old.is_symlink()


def test_from_version_10000_on_there_was_nothing_to_roll_back_to(run_folder: RunFolder) -> None:
    registry = Registry(run_folder.config.run_dir, "hlf")
    (registry.folder / "9998-00000000").mkdir(parents=True)
    state_before, state_after = (
        publish(registry, model=each, promoted="2026-01-01T00:00:00+00:00") for each in "ab"
    )
    assert rollback(run_folder, "hlf") == (state_after, state_before)
