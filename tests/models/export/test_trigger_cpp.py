"""docs/trigger.md: its C++ compiles as it stands against onnxruntime, and gives the network's
probabilities."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from networks import random_events, run, small_network, small_spec

from models.export.onnx_export import export_onnx

PAGE = Path(__file__).resolve().parents[3] / "docs" / "trigger.md"
TEXT = PAGE.read_text(encoding="utf-8")
HEADER = "onnxruntime_cxx_api.h"
#: Where Debian's `libonnxruntime-dev` and unpacked releases put headers.
FOLDERS = ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime", "/usr/local/include")
#: Around the page's lines: reads the features of one event from a file, and prints classes and
#: probabilities.
PROGRAM = """
#include <cstdio>
#include <fstream>
#include <vector>
{includes}
int main() {{
  std::ifstream file("values.bin", std::ios::binary);
  std::vector<float> values({n} * 19);
  file.read(reinterpret_cast<char*>(values.data()), values.size() * sizeof(float));
  const int64_t n = {n};
  {body}
  std::printf("%s\\n%.9g %.9g %.9g\\n", classes.get(), probability[0], probability[1], probability[2]);
}}
"""


def headers_folder() -> Path | None:
    """The first folder with the header."""
    chosen_folder = os.environ.get("ONNXRUNTIME_INCLUDE", "")
    for folder in (chosen_folder, *FOLDERS):
        if folder and (Path(folder) / HEADER).exists():
            return Path(folder)
    return None


def find_tools() -> tuple[Path, Path, str]:
    """Folder of the headers, library, and compiler; skips without them."""
    headers = headers_folder()
    package = Path(onnxruntime.__file__).parent
    libraries = sorted((package / "capi").glob("libonnxruntime.so*"))
    compiler = shutil.which("g++")
    if headers is None:
        pytest.skip(
            f"no {HEADER}: install libonnxruntime-dev (Debian 13 and later), or set ONNXRUNTIME_INCLUDE to the folder "
            f"of the headers of a release"
        )
    if compiler is None or not libraries:
        pytest.skip(
            "needs g++, and an onnxruntime for Python that is a shared library (those for Linux are)"
        )
    return headers, libraries[0], compiler


def program_of_the_page(num_particles: int) -> str:
    """The program around the lines of the page."""
    _, from_heading = TEXT.split("\n## C++")
    section, *_ = from_heading.split("\n## ")
    (code,) = re.findall(r"```cpp\n(.*?)```", section, flags=re.DOTALL)
    includes = []
    body = []
    for line in code.splitlines():
        lines = includes if line.startswith("#include") else body
        lines.append(line)
    return PROGRAM.format(includes="\n".join(includes), body="\n".join(body), n=num_particles)


@pytest.mark.slow
def test_the_cpp_of_the_page_gives_the_networks_probabilities(tmp_path: Path) -> None:
    headers, library, compiler = find_tools()
    (tmp_path / "trigger.cpp").write_text(program_of_the_page(7), encoding="utf-8")
    # Its own name in the package is longer than the one that programs look for.
    (tmp_path / "libonnxruntime.so.1").symlink_to(library)
    command = [
        compiler,
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-isystem{headers}",
        "trigger.cpp",
        str(library),
        f"-Wl,-rpath,{tmp_path}",
        "-o",
        "trigger",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=240)
    model = small_network("particles", dtype=torch.float32)
    export_onnx(model, small_spec("particles"), tmp_path / "model.onnx")
    events = random_events([7], dtype=torch.float32)
    events["particles"].numpy().tofile(tmp_path / "values.bin")

    completed = subprocess.run(
        ["./trigger"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
    )

    classes, numbers = completed.stdout.splitlines()
    assert classes == '["QCD", "ttbar", "W+jets"]'
    probabilities = [float(number_text) for number_text in numbers.split()]
    (logits,) = run(model, events)
    expected = torch.softmax(logits, dim=0).detach().numpy()
    np.testing.assert_allclose(probabilities, expected, rtol=0, atol=1e-6)
