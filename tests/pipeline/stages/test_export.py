"""What exported files say about where they come from."""

from __future__ import annotations

import io
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from feature_datasets import write_dataset
from networks import small_network, small_spec
from published_by_hand import example_version
from rich.console import Console

from models.export.onnx_export import Provenance
from models.saved_model import save_model
from pipeline.runs.version import Version
from pipeline.stages.export import Export, _export, _provenance

POINTS = {
    "signal": "ttbar",
    "fractions": {"QCD": 1.0},
    "points": [{"signal_efficiency": 0.9, "threshold": 0.5}],
}


def version_with_files(folder: Path, **digests: tuple[str, str]) -> Version:
    """A version with files of these digests of their bytes and of their content."""
    outputs = []
    for path, (digest, content_digest) in digests.items():
        outputs.append({"path": path, "size": 1, "digest": digest, "content": content_digest})
    version = example_version("train", folder, outputs=outputs, code_version="commit 1")
    return replace(version, name="0001-abcdef01")


def provenance(
    folder: Path,
    network: str = "hlf",
    *,
    seconds: str = "aa",
    weights: str = "ww",
    **further: Version,
) -> Provenance:
    """The provenance of a network of a training with these digests."""
    trained = {
        "hlf/metrics/rank-0.jsonl": (seconds, "same"),
        "hlf/model/weights.pt": (weights, weights),
        "particles/model/weights.pt": ("pp", "pp"),
    }
    features = {"train/part-00000.parquet": ("ff", "ff"), "test/x": ("tt", "tt")}
    upstream = {
        "train": version_with_files(folder / "train", **trained),
        "features": version_with_files(folder / "features", **features),
    }
    context: Any = SimpleNamespace(upstream=upstream | further)
    return _provenance(context, network)


def test_two_trainings_have_different_run_ids_also_with_the_same_weights(tmp_path: Path) -> None:
    first = provenance(tmp_path, seconds="1.25 s")
    second = provenance(tmp_path, seconds="1.31 s")

    assert first == provenance(tmp_path, seconds="1.25 s")
    assert first.run_id != second.run_id
    assert first.run_id.startswith("train 0001-abcdef01 ")
    assert first.digests == second.digests
    assert first.code["train"] == "commit 1"


def test_digests_are_those_of_the_network_and_of_its_training_events(tmp_path: Path) -> None:
    hlf = provenance(tmp_path, weights="ww").digests
    changed = provenance(tmp_path, weights="vv").digests
    particles = provenance(tmp_path, "particles", weights="vv").digests

    assert hlf["features"] == changed["features"] == particles["features"]
    assert len({hlf["network"], changed["network"], particles["network"]}) == 3


def test_thresholds_are_those_of_the_evaluation_if_there_is_one(tmp_path: Path) -> None:
    evaluated = version_with_files(tmp_path)
    (tmp_path / "working_points.json").write_text(json.dumps({"hlf": POINTS}))

    assert provenance(tmp_path).working_points is None
    assert provenance(tmp_path, evaluate=evaluated).working_points == POINTS
    assert provenance(tmp_path, "particles", evaluate=evaluated).working_points is None


@pytest.mark.parametrize(
    ("caps", "longest", "rows"),
    [
        ({"max_tracks": 1000}, 900, 1351),
        ({"max_tracks": 20, "max_photons": 5, "max_neutral_hadrons": 0}, 26, 26),
    ],
    ids=["raised", "lowered"],
)
def test_networks_of_other_caps_are_exported(
    tmp_path: Path, caps: dict[str, int], longest: int, rows: int
) -> None:
    rows_of_splits = {"train": [4], "val": [4], "test": [40]}
    dataset = write_dataset(tmp_path / "set", rows=rows_of_splits, max_particles=longest)
    description = json.loads((dataset.folder / "dataset.json").read_text())
    (dataset.folder / "dataset.json").write_text(json.dumps(description | {"definitions": caps}))
    spec = small_spec("particles")._replace(definitions=caps)
    (tmp_path / "train" / "particles").mkdir(parents=True)
    network = small_network(spec, dtype=torch.float32)
    save_model(network, spec, tmp_path / "train" / "particles" / "model")
    (tmp_path / "out").mkdir()
    context: Any = SimpleNamespace(
        upstream={
            "train": version_with_files(tmp_path / "train"),
            "features": version_with_files(dataset.folder),
        },
        config=SimpleNamespace(export=SimpleNamespace(hls4ml=False)),
        out_dir=tmp_path / "out",
    )

    measured = _export(context, "particles")

    for form in measured["forms"].values():
        assert form["largest_difference"] <= measured["tolerance"]
    one_event = onnx.load(tmp_path / "out" / "particles" / "one_event.onnx")
    (particles,) = one_event.graph.input
    assert [dim.dim_value for dim in particles.type.tensor_type.shape.dim] == [1, rows, 19]
    properties = {entry.key: entry.value for entry in one_event.metadata_props}
    assert json.loads(properties["inputs"])["particles"]["shape"] == [rows, 19]


def test_the_terminal_shows_what_each_width_of_firmware_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    firmware = {"bits": 8, "largest_difference": 0.0288, "same_class": 0.9934}
    firmware |= {"latency_ns": 40.0, "lookup_tables": 23_138}
    measured = {
        "tolerance": 1e-5,
        "forms": {"model.onnx": {"bytes": 13_400, "largest_difference": 1.2e-7}},
        "firmware": [firmware],
        "latency_us": {"p50": 11.0, "p99": 19.5, "p99_9": None},
        "events_per_second": 1e6,
    }
    monkeypatch.setattr("pipeline.stages.export._export", lambda *_: measured)
    monkeypatch.setattr("training.threads.use_threads", lambda _: None)
    trained = SimpleNamespace(counters=lambda _: SimpleNamespace(networks={"hlf": None}))
    terminal = io.StringIO()
    context: Any = SimpleNamespace(
        config=SimpleNamespace(train=SimpleNamespace(threads=1)),
        upstream={"train": trained},
        bar=lambda *_: nullcontext(lambda *_: None),
        out_dir=tmp_path,
        console=Console(file=terminal, width=80),
    )

    Export().run(context)

    (row,) = [line for line in terminal.getvalue().splitlines() if "0.0288" in line]
    assert row.split() == ["hlf", "8", "0.0288", "99.3", "40", "23,138"]
