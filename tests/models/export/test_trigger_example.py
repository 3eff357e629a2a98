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

PAGE = Path(__file__).resolve().parents[3] / "docs" / "trigger.md"
TEXT = PAGE.read_text(encoding="utf-8")


def section_of(heading: str) -> str:
    """The text of the page from a heading to the next one of any level."""
    _, from_heading = TEXT.split(heading)
    section, *_ = from_heading.split("\n#")
    return section


def example() -> str:
    """The Python of the page."""
    _, from_heading = TEXT.split("\n## Python")
    section, *_ = from_heading.split("\n## ")
    block: str
    (block,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    return block


def test_the_example_gives_the_networks_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = small_network("hlf", dtype=torch.float32)
    spec = small_spec("hlf")
    export_onnx(model, spec, tmp_path / "model.onnx")
    (tmp_path / "example.py").write_text(example(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    namespace: dict[str, Any] = runpy.run_path("example.py")

    hlf = namespace["hlf"]
    assert hlf.shape == (1, len(hlf_names()))
    # The numbers of the page.
    assert hlf[0, :4] == pytest.approx([312.4, 63.5, 1.2, 81.8])
    expected = model.probabilities({"hlf": hlf})
    np.testing.assert_allclose(namespace["probability"], expected, rtol=0, atol=1e-5)
    printed = {}
    for class_name, probability in zip(spec.classes, expected[0], strict=True):
        printed[class_name] = round(float(probability), 3)
    assert capsys.readouterr().out == f"{printed}\n"


def test_the_example_needs_onnxruntime_and_numpy_only_and_is_short() -> None:
    imports = re.findall(r"^(?:import|from) (\w+)", example(), flags=re.MULTILINE)

    assert set(imports) == {"json", "numpy", "onnxruntime"}
    assert len(example().splitlines()) <= 32


@pytest.mark.parametrize("column", ["hlf", "particles"])
def test_the_tables_list_the_features_in_order_with_their_units_and_meanings(column: str) -> None:
    section = section_of(f"### `{column}`")

    rows = re.findall(r"^\| \d.*$", section, flags=re.MULTILINE)

    features = INPUT_COLUMNS[column].features
    for index, (row, feature) in enumerate(zip(rows, features, strict=True)):
        assert row == f"| {index} | `{feature.name}` | {feature.unit} | {feature.meaning} |"


def test_the_page_names_the_metadata_the_opset_and_the_version() -> None:
    section = section_of("## Metadata")

    *keys, last = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)

    expected = metadata(small_spec("hlf"), {"hlf": [14]}, Provenance())
    assert keys == list(expected)
    assert last.encode() in seal_onnx(b"")
    assert f"`format_version` | `{FORMAT_VERSION}`" in section
    assert f"opset {OPSET}" in TEXT
