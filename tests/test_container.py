"""The images are built and run, where a builder and the base image are to be had."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.minutes, pytest.mark.timeout(2400)]

ROOT = Path(__file__).resolve().parents[1]
TAG = "hep-pipeline-test"
#: The config of a short run inside the container.
RUN = ("run", "--config", "demo", "--set", "train.epochs=2", "--set", "evaluate.reference=false")


def base_image() -> str:
    """The image that the Dockerfile begins with."""
    base = re.search(r"^FROM (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert base is not None
    return base[1]


def succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def builder() -> str:
    """The program that builds and runs images; skips the test where there is none, or no base."""
    for program in ("podman", "docker"):
        # The client of Docker may be there without its daemon.
        if shutil.which(program) and succeeds(program, "info"):
            has_base = succeeds(program, "image", "inspect", base_image())
            if has_base or succeeds(program, "pull", base_image()):
                return program
            pytest.skip(f"{program} is here, but it cannot pull {base_image()}")
    pytest.skip("neither podman nor a running docker is here")


@pytest.fixture(scope="module")
def image(builder: str) -> Iterator[str]:
    """The image of the Dockerfile."""
    command = [builder, "build", "--tag", TAG, str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]
    yield TAG
    subprocess.run([builder, "image", "rm", "--force", TAG], capture_output=True, check=True)


def assert_finished_run(run_dir: Path) -> None:
    """Check that all stages of a run were published."""
    for stage in ("ingest", "features", "train", "evaluate", "export", "report"):
        pointer = json.loads((run_dir / stage / "current.json").read_text())
        assert (run_dir / stage / pointer["version"] / "manifest.json").is_file()


def test_the_image_of_the_dockerfile_runs_the_pipeline(
    builder: str, image: str, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    # The user of the image has the number 1000.
    runs.chmod(0o777)
    command = [builder, "run", "--rm", "--shm-size=1g", "--volume", f"{runs}:/runs", image]

    completed = subprocess.run(
        [*command, *RUN, "--set", "run_dir=/runs/demo"], capture_output=True, text=True, check=False
    )

    assert completed.returncode == 0, completed.stdout[-4000:] + completed.stderr[-4000:]
    assert_finished_run(runs / "demo")


def test_the_image_of_the_definition_runs_the_pipeline(tmp_path: Path) -> None:
    apptainer = shutil.which("apptainer")
    if apptainer is None:
        pytest.skip("no apptainer is here")
    sif = tmp_path / "hep-pipeline.sif"
    if not succeeds(apptainer, "pull", str(tmp_path / "base.sif"), f"docker://{base_image()}"):
        pytest.skip(f"apptainer is here, but it cannot pull {base_image()}")
    built = subprocess.run(
        [apptainer, "build", str(sif), "apptainer.def"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]
    run_dir = tmp_path / "demo"

    completed = subprocess.run(
        [
            apptainer,
            "run",
            "--bind",
            str(tmp_path),
            str(sif),
            *RUN,
            "--set",
            f"run_dir={run_dir}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.returncode == 0, completed.stdout[-4000:] + completed.stderr[-4000:]
    assert_finished_run(run_dir)
