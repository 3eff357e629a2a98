"""What exported files say about where they come from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from published_by_hand import example_version

from pipeline.runs.version import Version
from pipeline.stages.export import _provenance

POINTS = {
    "signal": "ttbar",
    "fractions": {"QCD": 1.0},
    "points": [{"signal_efficiency": 0.9, "threshold": 0.5}],
}


def version(folder: Path, **files: tuple[str, str]) -> Version:
    """A version with files of these digests, of their bytes and of their content."""
    outputs = [
        {"path": path, "size": 1, "digest": digest, "content": document}
        for path, (digest, document) in files.items()
    ]
    return replace(
        example_version("train", folder, outputs=outputs, code_version="commit 1"),
        name="0001-abcdef01",
    )


def upstream(
    folder: Path, *, seconds: str = "aa", weights: str = "ww", **remaining: Version
) -> Any:
    trained = version(
        folder / "train",
        **{
            "hlf/metrics/rank-0.jsonl": (seconds, "same"),
            "hlf/model/weights.pt": (weights, weights),
        },
        **{"particles/model/weights.pt": ("pp", "pp")},
    )
    features = version(
        folder / "features", **{"train/part-00000.parquet": ("ff", "ff"), "test/x": ("tt", "tt")}
    )
    return SimpleNamespace(upstream={"train": trained, "features": features, **remaining})


def test_two_trainings_have_different_run_ids_also_with_the_same_weights(tmp_path: Path) -> None:
    first, repeated, second = (
        _provenance(upstream(tmp_path, seconds=seconds), "hlf")
        for seconds in ("1.25 s", "1.25 s", "1.31 s")
    )
    assert first == repeated
    assert first.run_id != second.run_id
    assert first.run_id.startswith("train 0001-abcdef01 ")
    assert first.digests == second.digests
    assert first.code["train"] == "commit 1"


def test_digests_are_those_of_the_network_and_of_its_training_events(tmp_path: Path) -> None:
    hlf, changed, particles = (
        _provenance(upstream(tmp_path, weights=weights), network).digests
        for weights, network in (("ww", "hlf"), ("vv", "hlf"), ("vv", "particles"))
    )
    assert hlf["features"] == changed["features"] == particles["features"]
    assert len({hlf["network"], changed["network"], particles["network"]}) == 3


def test_thresholds_are_those_of_the_evaluation_if_there_is_one(tmp_path: Path) -> None:
    evaluated = version(tmp_path)
    assert _provenance(upstream(tmp_path), "hlf").working_points is None
    (tmp_path / "working_points.json").write_text(json.dumps({"hlf": POINTS}), encoding="utf-8")
    assert _provenance(upstream(tmp_path, evaluate=evaluated), "hlf").working_points == POINTS
    assert _provenance(upstream(tmp_path, evaluate=evaluated), "particles").working_points is None
