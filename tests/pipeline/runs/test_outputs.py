"""The files of a manifest are on disk before the manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from published_by_hand import example_manifest

from pipeline.runs.outputs import (
    COUNTERS,
    EarlierFiles,
    content_digest,
    digest_of,
    without_volatile,
    written_files,
)
from pipeline.runs.store import StageStore
from pipeline.stages.table import STAGE_OF, STAGES

ALL_VOLATILE = frozenset[str]().union(*(stage.volatile for stage in STAGES))
FILES = ("train/part-00000.parquet", "hlf/model/weights.pt", "hlf/model.onnx", "metrics.json")


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What gets to the disk, and what gets its name, in this order, as paths below the stage."""
    result: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def flushed(descriptor: int) -> None:
        fsync(descriptor)
        results = [
            path
            for path in (tmp_path / "train", *tmp_path.rglob("*"))
            if os.path.samestat(path.stat(), os.fstat(descriptor))
        ]
        result.extend(path.relative_to(tmp_path / "train").as_posix() for path in results)

    def renamed(path: Path, target: Path) -> Path:
        result.append(f"-> {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    return result


def test_files_and_folders_are_on_the_disk_before_the_manifest_and_that_before_the_pointer(
    tmp_path: Path, steps: list[str]
) -> None:
    store = StageStore(tmp_path, "train")
    folder = store.next_folder("abcdef0123")
    store.create(folder)
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    store.commit(folder, example_manifest("train"))
    manifest, pointer = steps.index("-> manifest.json"), steps.index("-> current.json")
    written = [*FILES, "train", "hlf", "hlf/model", "."]
    expected = {os.path.normpath(f"{folder.name}/{name}") for name in written}
    assert expected <= {*steps[:manifest]}
    assert f"{folder.name}/.manifest.json.new" in steps[:manifest]
    assert folder.name in steps[manifest:pointer]
    assert ".current.json.new" in steps[manifest:pointer]
    assert "." in steps[pointer:]


@pytest.mark.parametrize("name", ["seconds", "latency", "created", "networks"])
def test_samples_and_classes_may_be_named_like_volatile_keys(name: str) -> None:
    counters = [
        {
            "samples": {name: {"events": events}},
            "runs": {"hlf": {"auc": {name: events}}},
            "networks": {},
        }
        for events in (1, 2)
    ]

    for pattern in ("counters/samples", "counters/runs"):
        first, second = (content_digest([], counts, [pattern], ALL_VOLATILE) for counts in counters)
        assert first != second


@pytest.mark.parametrize(
    ("stage", "path"),
    [
        ("train", "counters/networks/hlf/seconds"),
        ("train", "counters/networks/hlf/created"),
        ("train", "counters/further/hlf/hlf-seed-2/per_rank"),
        ("train", "rank-0.jsonl/0/wait_seconds"),
        ("features", "counters/kernel_outputs_taken_over"),
        ("features", "counters/kernel_outputs/3/lies_in"),
        ("features", "dataset.json/lies_in"),
        ("export", "export.json/hlf/latency_us"),
        ("gridsearch", "search.json/scores/12/latency"),
        ("gridsearch", "search.json/trainings_taken_over"),
    ],
)
def test_times_and_locations_are_no_content(stage: str, path: str) -> None:
    first_key, *inner_keys, last_key = path.split("/")

    def digest(value: int, key: str) -> str:
        document: Any = {key: value}
        for inner_key in reversed(inner_keys):
            document = [document] if inner_key.isdigit() else {inner_key: document}
        return digest_of(without_volatile({first_key: document}, STAGE_OF[stage].volatile))

    assert digest(1, last_key) == digest(2, last_key)
    assert digest(1, "events") != digest(2, "events")


#: Content of files of all stages with volatile keys, and its digests by earlier releases.
CONTENTS: dict[str, tuple[str, str, str]] = {
    "rank-0.jsonl": (
        "train",
        '{"epoch": 1, "loss": 0.5, "seconds": 3}\n{"epoch": 2, "loss": 0.4, "wait_seconds": 1}\n',
        "9a055c35662f3252577d2e8458f741d6",
    ),
    "search.json": (
        "gridsearch",
        '{"folds": 4, "seconds": 3, "scores": [{"loss": 0.1, "latency": {"value": 2}}]}',
        "a8193547cc15848d30aec41f0bb29c0b",
    ),
    "export.json": (
        "export",
        '{"hlf": {"tolerance": 1e-05, "latency_us": {"p50": 3}, "events_per_second": 7}}',
        "84a0fe2717990107d106b0199e6e8820",
    ),
    "dataset.json": (
        "features",
        '{"classes": ["a"], "lies_in": "s3://x", "n": null}',
        "95fe76f60526cd49e3aa239e8558e725",
    ),
    "metrics.json": (
        "evaluate",
        '{"runs": {"hlf": {"seconds": 3}}}',
        "92daeeb4e5c80b1d42f88f5818870173",
    ),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_content_digests_are_those_of_earlier_releases(tmp_path: Path, name: str) -> None:
    stage, text, expected = CONTENTS[name]
    (tmp_path / name).write_text(text)

    (file,) = written_files(
        tmp_path,
        without=(),
        earlier=EarlierFiles(tmp_path, {}),
        volatile=STAGE_OF[stage].volatile,
    )

    assert file.content == expected


@pytest.mark.parametrize(
    ("stage", "counters", "expected"),
    [
        (
            "train",
            {
                "networks": {"hlf": {"best_val_loss": 0.3, "seconds": 9, "per_rank": [1]}},
                "further": {"hlf": {"hlf-seed-2": {"best_val_loss": 0.2, "created": "x"}}},
            },
            "93411cdc1afe3ee494da6162c1d06792",
        ),
        (
            "features",
            {
                "samples": {"seconds": {"events": 3}},
                "kernel_outputs": [{"name": "a", "lies_in": "b", "file_digest": "c"}],
                "kernel_outputs_taken_over": 2,
            },
            "cd7df0b6f6f62dd6162dfc1af18b8faf",
        ),
    ],
)
def test_digests_of_counters_are_those_of_earlier_releases(
    stage: str, counters: dict[str, Any], expected: str
) -> None:
    assert content_digest([], counters, [COUNTERS], STAGE_OF[stage].volatile) == expected
