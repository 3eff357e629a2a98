"""The wheel of this project, built and installed as a user does, without the network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from pathlib import Path

from pipeline.runs.code_meaning import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
_BUILD = "import setuptools.build_meta as backend, sys; backend.build_wheel(sys.argv[1])"


def built_wheel(folder: Path, files: Iterable[str]) -> Path:
    """The wheel of some files of the checkout, and of the bundled events."""
    samples = [f"samples/{path.name}" for path in (ROOT / "samples").glob("*.root")]
    for name in [*files, *samples, "pyproject.toml", "README.md"]:
        (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "copy" / name)
    subprocess.run(
        [sys.executable, "-c", _BUILD, str(folder)],
        cwd=folder / "copy",
        check=True,
        capture_output=True,
    )
    shutil.rmtree(folder / "copy")
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed_wheel(folder: Path) -> Path:
    """Programs of an environment with the wheel of this checkout and the present packages."""
    files = []
    for name in PACKAGES:
        paths = (ROOT / name).rglob("*")
        files += [path.relative_to(ROOT) for path in paths if path.is_file()]
    named = [str(path) for path in files if "__pycache__" not in path.parts]
    wheel = built_wheel(folder, [*named, "hep_pipeline.py"])
    venv.create(folder / "env", with_pip=False, symlinks=True)
    programs = folder / "env" / "bin"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "env")}))
    # Of a folder that such a file names, Python reads no further ones: the editable install of the
    # checkout stays out.
    (site / "present.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    command = ("uv", "--quiet", "pip", "install", "--offline", "--no-deps", "--python")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(
        [*command, programs / "python", wheel], check=True, env={**os.environ, "PATH": path}
    )
    return programs
