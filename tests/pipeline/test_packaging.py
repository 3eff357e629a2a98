"""What is installed: the wheel of this project, the ranges of pyproject.toml and the locks of `make setup`."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from wheels import PACKAGES, ROOT, built_wheel

LOCKS = sorted(ROOT.glob("requirements*.lock"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = ("3.11", "3.12", "3.13")


def tracked_files() -> set[str]:
    git = shutil.which("git")
    assert git
    listed = subprocess.run(
        [git, "-C", ROOT, "ls-files", "-z", *PACKAGES, "hep_pipeline.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    # Files that are moved but not committed are no longer there.
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}


@pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="only a checkout says which files belong to the project"
)
def test_the_wheel_holds_every_file_of_the_packages(tmp_path: Path) -> None:
    files = tracked_files()
    wheel = built_wheel(tmp_path, [*files])
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    shared = {name for name in packed if "/share/hep-pipeline/" in name}
    # The default config reads them.
    samples = {f"samples/{path.name}" for path in (ROOT / "samples").glob("*.root")}
    assert {name.partition("hep-pipeline/")[2] for name in shared} == samples
    packed -= shared
    assert packed == files
    assert {f"{package}/py.typed" for package in PACKAGES} <= packed
    assert {
        "pipeline/machine/ensure_java.sh",
        "pipeline/machine/log4j2.properties",
        "pipeline/configs/demo.yaml",
    } <= packed


def locked(lock: Path, python: str) -> dict[str, str]:
    """Versions that a lock gives on Linux, by name."""
    entries = re.findall(
        r"^([a-zA-Z][^\\#\n]*?) *\\$", lock.read_text(encoding="utf-8"), re.MULTILINE
    )
    marks = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "sys_platform": "linux",
    }
    requirements = [Requirement(entry) for entry in entries]
    return {
        requirement.name: str(requirement.specifier).removeprefix("==")
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate(marks)
    }


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("torch", ["cpu", "cuda"])
def test_the_locks_hold_what_pyproject_asks_for(python: str, torch: str) -> None:
    versions = locked(ROOT / "requirements.lock", python) | locked(
        ROOT / f"requirements-{torch}.lock", python
    )
    extras = PROJECT["project"]["optional-dependencies"]
    asked = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]
    asked += [line for name in ("https", "mlflow", "s3", "tensorboard") for line in extras[name]]
    by_name = {canonicalize_name(name): version for name, version in versions.items()}
    for requirement in map(Requirement, asked):
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(by_name.get(name, "0")), (
            str(requirement),
            by_name.get(name),
        )


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_locks_name_no_place_to_download_from(lock: Path) -> None:
    # Whoever installs says where from.
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"(^| )(/|--(index|extra|find|trusted))", text, re.MULTILINE)
    entries = re.split(r"\n(?=[a-zA-Z])", re.sub(r"(^|\n) *#.*", "", text).strip())
    assert all("--hash=sha256:" in entry for entry in entries)
