"""docs/trigger.md: SOFIE makes C++ of the networks for one event, and the page's lines give their
probabilities."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import scipy
import torch
from networks import ROBUST_SCALERS, small_network, small_spec

from features.columns import INPUT_COLUMNS, hlf_names
from models.export.onnx_export import export_one_event
from models.networks.registry import ModelName

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "trigger.md").read_text(encoding="utf-8")
SECTION = TEXT.split("### ROOT's SOFIE")[1].split("\n## ")[0]
#: Around the page's lines: reads the inputs of some events from a file, and prints their
#: probabilities.
PROGRAM = """
#include <cstdio>
#include <fstream>
{include}
int main() {{
  std::ifstream file("values.bin", std::ios::binary);
  std::vector<float> hlf({num_hlf}), particles(801 * 19);
  {once}
  while ({read}) {{
    {each}
    for (float one : probability) std::printf("%.9g ", one);
    std::printf("\\n");
  }}
}}
"""
#: Calls of BLAS in the generated code, as the library in scipy's package names them.
BLAS = [f"-D{name}_=scipy_{name}_" for name in ("sgemm", "sgemv", "saxpy")]


def found() -> tuple[str, Path]:
    """Compiler and BLAS; skips without them or SOFIE."""
    pytest.importorskip("sofie", reason="needs `pip install sofie`")
    libraries = sorted(
        (Path(scipy.__file__).parents[1] / "scipy.libs").glob("libscipy_openblas*.so")
    )
    compiler = shutil.which("g++")
    if compiler is None or not libraries:
        pytest.skip(
            "needs g++, and a scipy that brings BLAS as a shared library (those for Linux do)"
        )
    return compiler, libraries[0]


def code_of(language: str) -> str:
    """The page's lines."""
    (lines,) = re.findall(rf"```{language}\n(.*?)```", SECTION, flags=re.DOTALL)
    return str(lines)


def some_events(names: list[str]) -> list[dict[str, Any]]:
    """Inputs of events with 1, 40 and all 801 particles."""
    rng = np.random.default_rng(1)
    results = []
    for length in (1, 40, 801):
        column = {}
        for name in names:
            scaler = ROBUST_SCALERS[name]
            column[name] = rng.normal(
                scaler.mean, scaler.std, (1, *INPUT_COLUMNS[name].shape)
            ).astype(np.float32)
            if name == "particles":
                column[name][..., 13:18] = np.eye(5)[rng.integers(0, 5, 801)]
                column[name][:, length:] = 0.0
        results.append(column)
    return results


@pytest.mark.parametrize("name", ["hlf", "particles", "inclusive"])
@pytest.mark.slow
def test_sofie_gives_the_networks_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: ModelName
) -> None:
    compiler, library = found()
    monkeypatch.chdir(tmp_path)
    spec = small_spec(name)
    spec = spec._replace(scalers={column: ROBUST_SCALERS[column] for column in spec.scalers})
    export_one_event(small_network(spec, dtype=torch.float32), spec, tmp_path / "one_event.onnx")
    session = onnxruntime.InferenceSession("one_event.onnx", providers=["CPUExecutionProvider"])
    events = some_events([model_input.name for model_input in session.get_inputs()])
    expected = np.concatenate([session.run(None, event)[0] for event in events])
    with Path("values.bin").open("wb") as file:
        for event in events:
            for values in event.values():
                values.tofile(file)
    Path("generate.py").write_text(code_of("python"), encoding="utf-8")
    runpy.run_path("generate.py")
    include, once, each_event = re.split(r"\n// .*\n", code_of("cpp"))
    names = list(events[0])
    read = " && ".join(
        f"file.read(reinterpret_cast<char*>({first}.data()), {first}.size() * sizeof(float))"
        for first in names
    )
    each_event = each_event.replace(
        "particles.data()", ", ".join(f"{first}.data()" for first in names)
    )
    Path("main.cpp").write_text(
        PROGRAM.format(
            num_hlf=len(hlf_names()), include=include, once=once, read=read, each=each_event
        ),
        encoding="utf-8",
    )
    # -O1: the first optimisations make the test run at once, others only make the compiler slow.
    command = [
        compiler,
        "-std=c++17",
        "-O1",
        *BLAS,
        "main.cpp",
        str(library),
        f"-Wl,-rpath,{library.parent}",
    ]
    subprocess.run([*command, "-o", "trigger"], check=True, timeout=240)
    completed = subprocess.run(
        ["./trigger"], check=True, capture_output=True, text=True, timeout=60
    )
    numbers = [[float(word) for word in line.split()] for line in completed.stdout.splitlines()]
    np.testing.assert_allclose(numbers, expected, rtol=0, atol=2e-6)
    assert np.ptp(expected, axis=0).min() > 1e-4
