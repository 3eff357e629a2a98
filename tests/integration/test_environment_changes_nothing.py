"""The environment changes nothing: a run in a hostile one gives the bytes of a run in an ordinary
one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import pipeline, version_of
from finished_run import FinishedRun

pytestmark = [pytest.mark.minutes, pytest.mark.end_to_end, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
#: Each of these alone changes a result, or ends a run, where it counts.
HOSTILE = {
    "JAVA_TOOL_OPTIONS": "-Xmx1x",
    "JDK_JAVA_OPTIONS": "-XX:NoSuchOption",
    "LC_ALL": "C",
    "MKL_NUM_THREADS": "no number",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F",
    "NUMBA_BOUNDSCHECK": "1",
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_OPT": "0",
    "OMPI_MCA_btl_tcp_if_include": "ib0",
    "OMPI_MCA_pml": "of_another_mpi",
    "OMP_NUM_THREADS": "3",
    "OPAL_PREFIX": "/no/mpi",
    "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "none",
    "PYSPARK_DRIVER_PYTHON": "jupyter",
    "PYSPARK_PYTHON": "python2",
    "PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell",
    "PYTHONHASHSEED": "7",
    "PYTHONOPTIMIZE": "2",
    "PYTHONWARNINGS": "error",
    "SPARK_HOME": "/no/spark",
    "SPARK_LOCAL_DIRS": "/no/disk",
    "SPARK_SUBMIT_OPTS": "-Dspark.eventLog.enabled=true",
    "TORCH_DISABLE_ADDR2LINE": "1",
    "TZ": "Pacific/Auckland",
}
#: Settings of a user's matplotlib; there is no LaTeX.
MATPLOTLIBRC = (
    "text.usetex: True\naxes.grid: True\nsavefig.facecolor: red\npdf.fonttype: 42\nfont.size: 30\n"
)


@pytest.fixture
def hostile(tmp_path: Path) -> dict[str, str]:
    """An environment; modules with the names of ours end the process that imports them."""
    current, on_path, settings = (tmp_path / "here", tmp_path / "path", tmp_path / "settings")
    for folder in (current, on_path, settings):
        folder.mkdir()
    for name in ("features", "ingestion", "models", "training", "signal", "numpy"):
        for folder in (current, on_path):
            (folder / f"{name}.py").write_text("raise SystemExit('not ours')\n")
    (current / "matplotlibrc").write_text(MATPLOTLIBRC)
    (current / ".numba_config.yaml").write_text("disable_jit: 1\n")
    (settings / "spark-defaults.conf").write_text(
        "spark.eventLog.enabled true\nspark.eventLog.dir hdfs://no.such.host:9000/\n"
    )
    return {
        **os.environ,
        **HOSTILE,
        "SPARK_CONF_DIR": str(settings),
        "HADOOP_CONF_DIR": str(settings),
        "YARN_CONF_DIR": str(settings),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(on_path)]),
        "MATPLOTLIBRC": str(current),
    }


@contextmanager
def umask(mask: int) -> Iterator[None]:
    mask_before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(mask_before)


def test_a_run_in_a_hostile_environment_gives_the_same_bytes(
    finished_run: FinishedRun, hostile: dict[str, str], tmp_path: Path
) -> None:
    finished_run.restore(state_before="evaluate")
    # The shared run has no figures.
    evaluated = finished_run.run("evaluate")
    assert evaluated.returncode == 0, evaluated.stderr
    expected = shutil.copytree(version_of(finished_run.run_dir, "evaluate"), tmp_path / "expected")
    finished_run.restore(state_before="ingest")
    arguments = ("run", "--until", "evaluate", "--config", finished_run.config)

    with umask(0o277):
        result = pipeline(*arguments, cwd=tmp_path / "here", env=hostile)

    assert result.returncode == 0, result.stdout + result.stderr
    for stage in ("ingest", "features", "train", "evaluate"):
        finished_run.assert_same_result(stage)
    figures = list(expected.rglob("*.p[dn][fg]"))
    assert figures
    in_hostile = version_of(finished_run.run_dir, "evaluate")
    for figure in figures:
        name = figure.relative_to(expected)
        assert (in_hostile / name).read_bytes() == figure.read_bytes(), name


def test_the_console_script_starts_beside_a_module_named_pipeline(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("raise SystemExit('not ours')\n")

    completed = subprocess.run(
        [sys.executable, ROOT / "hep_pipeline.py", "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.stdout.startswith("hep-pipeline"), completed.stderr
