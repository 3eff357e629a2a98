"""The Dockerfile and the definition for Apptainer, against each other and the files that they use.

`test_container.py` builds them.
"""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from packaging.specifiers import SpecifierSet

from pipeline.machine.doctor import JAVA_VERSIONS
from pipeline.runs.code_meaning import PACKAGES

ROOT = Path(__file__).resolve().parents[1]
IMAGE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
DEFINITION = (ROOT / "apptainer.def").read_text(encoding="utf-8")


def section(name: str) -> list[str]:
    """Lines of a section of the definition for Apptainer."""
    text = re.search(rf"^%{name}\n((?: +.*\n)+)", DEFINITION, re.MULTILINE)
    assert text is not None
    return [line.strip() for line in text[1].splitlines()]


def files_of_setup() -> list[str]:
    """Files that `make setup` reads."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rule = re.search(r"^\$\(VENV\)/\.installed:(.*)$", makefile, re.MULTILINE)
    assert rule is not None
    return [*rule[1].split(), "README.md", "LICENSE", "Makefile"]


def test_its_python_and_java_are_those_of_the_project() -> None:
    python = re.search(r"^FROM python:(\d+\.\d+)-", IMAGE, re.MULTILINE)
    java = re.search(r"openjdk-(\d+)-jre-headless", IMAGE)
    assert python is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert python[1] in SpecifierSet(project["requires-python"])
    assert java is not None
    assert int(java[1]) in JAVA_VERSIONS


def test_what_setup_reads_is_copied() -> None:
    needed = [*files_of_setup(), "pipeline/machine/ensure_java.sh"]
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


def test_both_begin_with_one_image_and_install_the_same() -> None:
    base = re.search(r"^FROM (\S+)$", IMAGE, re.MULTILINE)
    assert base is not None
    assert DEFINITION.startswith(f"Bootstrap: docker\nFrom: {base[1]}\n")
    commands = section("post")
    for command in ("apt-get update", "rm -rf /var/lib/apt/lists/*"):
        assert command in commands
        assert command in IMAGE
    (installation,) = [command for command in commands if command.startswith("apt-get install")]
    assert f"{installation} \\\n" in IMAGE
    setup = "UV_COMPILE_BYTECODE=1 make setup"
    assert setup in commands
    assert f"RUN {setup} &&" in IMAGE


def test_the_definition_copies_all_packages_and_what_setup_reads() -> None:
    copied = {}
    for line in section("files"):
        source, destination = line.split()
        copied[source] = destination

    assert set(copied) == {*files_of_setup(), *PACKAGES, "hep_pipeline.py", "samples"}
    for source, destination in copied.items():
        assert (ROOT / source).exists()
        assert destination == f"/hep-pipeline/{source}"


def test_the_definition_starts_the_interpreter_of_its_environment() -> None:
    assert section("runscript") == ['exec /hep-pipeline/.venv/bin/python -m pipeline "$@"']
