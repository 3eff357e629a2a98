"""The wheel of this project, the ranges of pyproject.toml and the locks of `make setup`."""

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
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    # The default config reads the samples.
    packed_samples = {name for name in names if "/share/hep-pipeline/" in name}
    samples = {f"samples/{path.name}" for path in (ROOT / "samples").glob("*.root")}
    assert {name.partition("hep-pipeline/")[2] for name in packed_samples} == samples
    packed = names - packed_samples
    assert packed == files
    assert {f"{package}/py.typed" for package in PACKAGES} <= packed
    assert {
        "pipeline/machine/ensure_java.sh",
        "pipeline/machine/log4j2.properties",
        "pipeline/configs/demo.yaml",
    } <= packed


def locked_versions(lock_name: str, python: str) -> dict[str, str]:
    """Versions that a lock gives on Linux, by name of the package."""
    text = (ROOT / lock_name).read_text(encoding="utf-8")
    marker_values = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "sys_platform": "linux",
    }
    versions = {}
    for entry in re.findall(r"^([a-zA-Z][^\\#\n]*?) *\\$", text, re.MULTILINE):
        requirement = Requirement(entry)
        if requirement.marker is None or requirement.marker.evaluate(marker_values):
            version = str(requirement.specifier).removeprefix("==")
            versions[canonicalize_name(requirement.name)] = version
    return versions


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("torch", ["cpu", "cuda"])
def test_the_locks_meet_the_ranges_of_pyproject(python: str, torch: str) -> None:
    versions = locked_versions("requirements.lock", python)
    versions |= locked_versions(f"requirements-{torch}.lock", python)

    extras = PROJECT["project"]["optional-dependencies"]
    lines = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]
    for extra in ("https", "mlflow", "s3", "tensorboard"):
        lines += extras[extra]
    for line in lines:
        requirement = Requirement(line)
        version = versions.get(canonicalize_name(requirement.name), "0")
        assert requirement.specifier.contains(version), (line, version)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_locks_state_hashes_and_leave_the_index_to_the_installer(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")

    assert "://" not in text
    assert not re.search(r"(^| )(/|--(index|extra|find|trusted))", text, re.MULTILINE)
    without_comments = re.sub(r"(^|\n) *#.*", "", text).strip()
    for entry in re.split(r"\n(?=[a-zA-Z])", without_comments):
        assert "--hash=sha256:" in entry
