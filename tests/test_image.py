"""The Dockerfile against the files that it uses, since no test can build it."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from packaging.specifiers import SpecifierSet

from pipeline.machine.doctor import JAVA_VERSIONS

ROOT = Path(__file__).resolve().parents[1]
IMAGE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_its_python_and_java_are_those_of_the_project() -> None:
    python = re.search(r"^FROM python:(\d+\.\d+)-", IMAGE, re.MULTILINE)
    java = re.search(r"openjdk-(\d+)-jre-headless", IMAGE)
    assert python is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert python[1] in SpecifierSet(project["requires-python"])
    assert java is not None
    assert int(java[1]) in JAVA_VERSIONS


def test_what_setup_reads_is_copied() -> None:
    rule = re.search(
        r"^\$\(VENV\)/\.installed:(.*)$",
        (ROOT / "Makefile").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert rule is not None
    needed = [
        *rule[1].split(),
        "README.md",
        "LICENSE",
        "Makefile",
        "pipeline/machine/ensure_java.sh",
    ]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for name in needed:
        assert (ROOT / name).exists()
        assert not any(fnmatch(name, pattern) for pattern in ignored), name


def test_it_starts_the_interpreter_of_its_environment_as_a_user_that_owns_it() -> None:
    folder = re.search(r"^WORKDIR (\S+)$", IMAGE, re.MULTILINE)
    assert folder is not None
    assert f'ENTRYPOINT ["{folder[1]}/.venv/bin/python", "-m", "pipeline"]' in IMAGE
    # MPI refuses root, and the user compiles and caches beside the code.
    assert (
        IMAGE.index("USER physics")
        < IMAGE.index("COPY --chown=physics")
        < IMAGE.index("make setup &&")
    )
