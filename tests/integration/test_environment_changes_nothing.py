"""The environment changes nothing: a run in a hostile one gives the bytes of a run in an ordinary
one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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
    for folder in ("path", "here"):
        (tmp_path / folder).mkdir()
        for name in ("features", "ingestion", "models", "training", "signal", "numpy"):
            (tmp_path / folder / f"{name}.py").write_text("raise SystemExit('not ours')\n")
    (tmp_path / "here" / "matplotlibrc").write_text(MATPLOTLIBRC)
    (tmp_path / "here" / ".numba_config.yaml").write_text("disable_jit: 1\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "spark-defaults.conf").write_text(
        "spark.eventLog.enabled true\nspark.eventLog.dir hdfs://no.such.host:9000/\n"
    )
    folders = dict.fromkeys(
        ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"), str(tmp_path / "site")
    )
    path = os.pathsep.join([str(ROOT), str(tmp_path / "path")])
    return {
        **os.environ,
        **HOSTILE,
        **folders,
        "PYTHONPATH": path,
        "MATPLOTLIBRC": str(tmp_path / "here"),
    }


def test_a_run_in_a_hostile_environment_gives_the_same_bytes(
    finished_run: FinishedRun, hostile: dict[str, str], tmp_path: Path
) -> None:
    finished_run.restore(state_before="evaluate")
    # The shared run has no figures.
    drawn = finished_run.run("evaluate")
    assert drawn.returncode == 0, drawn.stderr
    plain = shutil.copytree(version_of(finished_run.run_dir, "evaluate"), tmp_path / "plain")
    finished_run.restore(state_before="ingest")
    umask_before = os.umask(0o277)
    try:
        command = ("run", "--until", "evaluate", "--config", finished_run.config)
        result = pipeline(*command, cwd=tmp_path / "here", env=hostile)
    finally:
        os.umask(umask_before)
    assert result.returncode == 0, result.stdout + result.stderr
    for stage in ("ingest", "features", "train", "evaluate"):
        finished_run.assert_same_result(stage)
    figures = [path.relative_to(plain) for path in plain.rglob("*.p[dn][fg]")]
    assert figures
    current = version_of(finished_run.run_dir, "evaluate")
    assert [
        name for name in figures if (current / name).read_bytes() != (plain / name).read_bytes()
    ] == []


def test_a_package_named_pipeline_on_the_path_does_not_stop_the_console_script(
    tmp_path: Path,
) -> None:
    (tmp_path / "pipeline.py").write_text("raise SystemExit('not ours')\n")
    completed = subprocess.run(
        [sys.executable, ROOT / "hep_pipeline.py", "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert completed.stdout.startswith("hep-pipeline"), completed.stderr
