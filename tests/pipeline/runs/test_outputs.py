"""The files of a manifest are on disk before the manifest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.runs.outputs import content_digest, digest_of
from pipeline.runs.store import StageStore

FILES = ("train/part-00000.parquet", "hlf/model/weights.pt", "hlf/model.onnx", "metrics.json")


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What gets to the disk, and what gets its name, in this order, as paths below the stage."""
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def flushed(descriptor: int) -> None:
        fsync(descriptor)
        found = [
            path
            for path in (tmp_path / "train", *tmp_path.rglob("*"))
            if os.path.samestat(path.stat(), os.fstat(descriptor))
        ]
        done.extend(path.relative_to(tmp_path / "train").as_posix() for path in found)

    def renamed(path: Path, target: Path) -> Path:
        done.append(f"-> {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    return done


def test_files_and_folders_are_on_the_disk_before_the_manifest_and_that_before_the_pointer(
    tmp_path: Path, steps: list[str]
) -> None:
    store = StageStore(tmp_path, "train")
    folder = store.next_folder("abcdef0123")
    store.begin(folder)
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    store.commit(folder, {})
    manifest, pointer = steps.index("-> manifest.json"), steps.index("-> current.json")
    written = [*FILES, "train", "hlf", "hlf/model", "."]
    expected = {os.path.normpath(f"{folder.name}/{name}") for name in written}
    assert expected <= {*steps[:manifest]}
    assert f"{folder.name}/.manifest.json.new" in steps[:manifest]
    assert folder.name in steps[manifest:pointer]
    assert ".current.json.new" in steps[manifest:pointer]
    assert "." in steps[pointer:]


@pytest.mark.parametrize("name", ["seconds", "latency", "created", "networks"])
def test_a_sample_or_class_named_like_a_time_was_no_content(name: str) -> None:
    """Keys of these names were left out at every depth: a change of such a sample made nothing stale."""
    counters = [
        {
            "samples": {name: {"events": events}},
            "runs": {"hlf": {"auc": {name: events}}},
            "networks": {},
        }
        for events in (1, 2)
    ]
    for patterns in (["counters/samples"], ["counters/runs"]):
        first, second = (content_digest([], counter, patterns) for counter in counters)
        assert first != second
    for file in ("cutflow.json", "metrics.json", "curves.json", "model.json"):
        assert digest_of({name: 1}, file) != digest_of({name: 2}, file)


@pytest.mark.parametrize(
    "place",
    [
        *(
            "counters/networks/hlf/seconds",
            "counters/networks/hlf/created",
            "counters/further/hlf/hlf-seed-2/per_rank",
        ),
        *(
            "counters/kernel_outputs_taken_over",
            "counters/kernel_outputs/3/lies_in",
            "rank-0.jsonl/0/wait_seconds",
        ),
        *(
            "export.json/hlf/latency_us",
            "search.json/scores/12/latency",
            "search.json/trainings_taken_over",
        ),
    ],
)
def test_what_a_result_took_and_where_it_lies_is_no_content(place: str) -> None:
    file, *keys = place.split("/")

    def digest(number: int, last: str) -> str:
        value: object = {last: number}
        for key in reversed(keys[:-1]):
            value = [*[{}] * int(key), value] if key.isdigit() else {key: value}
        return digest_of(value, file)

    assert digest(1, keys[-1]) == digest(2, keys[-1])
    assert digest(1, "events") != digest(2, "events")
