"""docs/trigger.md: its example runs, and its tables are what the code says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import small_network, small_spec

from features.columns import INPUT_COLUMNS, hlf_names
from models.export.onnx_classifier import FORMAT_VERSION, seal_onnx
from models.export.onnx_export import OPSET, Provenance, export_onnx, metadata

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "trigger.md").read_text(encoding="utf-8")


def example() -> str:
    """The Python of the page."""
    section = TEXT.split("\n## Python")[1].split("\n## ")[0]
    blocks: list[str] = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert len(blocks) == 1
    return blocks[0]


def test_the_example_gives_the_networks_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, spec = small_network("hlf", dtype=torch.float32), small_spec("hlf")
    export_onnx(model, spec, tmp_path / "model.onnx")
    (tmp_path / "example.py").write_text(example(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = runpy.run_path("example.py")
    assert namespace["hlf"].shape == (1, len(hlf_names()))
    assert namespace["hlf"][0, :4] == pytest.approx([312.4, 63.5, 1.2, 81.8])
    expected = model.probabilities({"hlf": namespace["hlf"]})
    np.testing.assert_allclose(namespace["probability"], expected, rtol=0, atol=1e-5)
    printed = {
        name: round(float(value), 3) for name, value in zip(spec.classes, expected[0], strict=True)
    }
    assert capsys.readouterr().out == f"{printed}\n"


def test_the_example_needs_onnxruntime_and_numpy_only_and_is_short() -> None:
    imports = re.findall(r"^(?:import|from) (\w+)", example(), flags=re.MULTILINE)
    assert set(imports) == {"json", "numpy", "onnxruntime"}
    assert len(example().splitlines()) <= 32


@pytest.mark.parametrize("column", ["hlf", "particles"])
def test_the_tables_list_the_features_in_order_with_their_units_and_meanings(column: str) -> None:
    section = TEXT.split(f"### `{column}`")[1].split("\n#")[0]
    features = INPUT_COLUMNS[column].features
    assert re.findall(r"^\| \d.*$", section, flags=re.MULTILINE) == [
        f"| {index} | `{feature.name}` | {feature.unit} | {feature.meaning} |"
        for index, feature in enumerate(features)
    ]


def test_the_page_names_the_metadata_the_opset_and_the_version() -> None:
    section = TEXT.split("## Metadata")[1].split("\n#")[0]
    *keys, last = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    assert keys == list(metadata(small_spec("hlf"), {"hlf": [14]}, Provenance()))
    assert last.encode() in seal_onnx(b"")
    assert f"`format_version` | `{FORMAT_VERSION}`" in section
    assert f"opset {OPSET}" in TEXT
