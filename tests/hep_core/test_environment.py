"""The table of what of the environment counts, and the door that applies it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hep_core.environment import (
    IGNORED_BY_LOCAL_SPARK,
    IGNORED_EVERYWHERE,
    MODULE_COMMAND,
    clean_environment,
    ignored_names,
)

ROOT = Path(__file__).resolve().parents[2]
PROBE = """
import json, os, sys
print(json.dumps([sys.argv, sys.flags.optimize, sys.path[:2], sys.getfilesystemencoding(), dict(os.environ)]))
"""


@pytest.mark.parametrize(
    "name",
    [
        *("HOME", "PATH", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "JAVA_HOME", "CUDA_VISIBLE_DEVICES", "https_proxy"),
        *("AWS_SECRET_ACCESS_KEY", "KRB5CCNAME", "X509_USER_PROXY", "XRD_REQUESTTIMEOUT", "FSSPEC_S3_ANON", "NO_COLOR"),
        *("OMPI_MCA_btl", "UCX_TLS", "SLURM_JOB_ID", "MLFLOW_TRACKING_URI", "HEP_PIPELINE_SET", "PYTHONUNBUFFERED"),
        *("SSL_CERT_FILE", "NUMBA_CACHE_DIR", "_TYPER_COMPLETE_ARGS", "MPLCONFIGDIR", "MY_TOKEN"),
    ],
)  # fmt: skip
def test_variables_of_no_row_stay(name: str) -> None:
    assert list(ignored_names(IGNORED_EVERYWHERE | IGNORED_BY_LOCAL_SPARK, [name])) == []
    assert clean_environment({name: "x"})[name] == "x"


def test_each_row_ignores_what_it_names() -> None:
    names = {name.replace("*", "X") for row in IGNORED_EVERYWHERE.values() for name in row.patterns}
    fromkeys_before = dict.fromkeys(names, "x")
    clean_environment_after = clean_environment(fromkeys_before)
    assert {name for name in names if clean_environment_after.get(name) == "x"} == set()
    # A second door changes nothing, so a process starts Python at most once more.
    assert clean_environment(clean_environment_after) == clean_environment_after


def test_on_a_cluster_the_settings_of_the_site_count() -> None:
    site = {
        "SPARK_CONF_DIR": "/etc/spark",
        "HADOOP_CONF_DIR": "/etc/hadoop",
        "JAVA_TOOL_OPTIONS": "-Xss4m",
    }
    assert site.items() <= clean_environment(site).items()
    assert set(ignored_names(IGNORED_BY_LOCAL_SPARK, site)) == set(site)


def run_program(folder: Path, env: Mapping[str, str]) -> list[object]:
    (folder / "probe.py").write_text(PROBE)
    completed = subprocess.run(
        [*MODULE_COMMAND, "probe", "a b"], cwd=folder, env=env, capture_output=True, text=True, check=True
    )  # fmt: skip
    state: list[object] = json.loads(completed.stdout)
    return state


def test_a_program_on_another_host_starts_as_on_this_one(tmp_path: Path) -> None:
    (tmp_path / "features.py").touch()
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    own_value = {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "2",
        "OMPI_COMM_WORLD_RANK": "1",
        "HOME": str(tmp_path),
    }
    foreign = {
        "PYTHONOPTIMIZE": "1",
        "PYTHONUTF8": "0",
        "LC_ALL": "C",
        "NUMBA_DISABLE_JIT": "1",
        "NUMEXPR_MAX_THREADS": "X",
    }
    argv, optimize, start, encoding, env = run_program(tmp_path, {**own_value, **foreign})
    assert argv == [str(tmp_path / "probe.py"), "a b"]
    assert (optimize, start, encoding) == (0, [str(ROOT), str(tmp_path)], "utf-8")
    assert isinstance(env, dict)
    assert own_value.items() <= env.items()
    assert env["LC_ALL"] == "C.UTF-8"
    assert not {"PYTHONOPTIMIZE", "NUMBA_DISABLE_JIT", "NUMEXPR_MAX_THREADS"} & env.keys()


@pytest.mark.parametrize("way", [["-m", "pipeline"], [str(ROOT / "hep_pipeline.py")]])
def test_modules_of_users_with_the_names_of_ours_are_not_imported(
    way: list[str], tmp_path: Path
) -> None:
    for folder in ("here", "path"):
        (tmp_path / folder / "models").mkdir(parents=True)
        for name in (
            "features.py",
            "ingestion.py",
            "training.py",
            "signal.py",
            "models/__init__.py",
        ):
            (tmp_path / folder / name).write_text("raise SystemExit('not ours')\n")
    path = os.pathsep.join([str(tmp_path / "path"), str(ROOT)])
    completed = subprocess.run(
        [sys.executable, *way, "config"],
        cwd=tmp_path / "here", env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (completed.returncode, completed.stderr) == (0, "")


#: Prints its environment, and that for foreign programs, after it has cleaned its own.
FOREIGN_PROBE = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT)!r})
from hep_core.environment import enter_clean_environment, foreign_environment
enter_clean_environment()
print(json.dumps([dict(os.environ), foreign_environment()]))
"""


@pytest.mark.parametrize(
    "variables",
    [
        # Python reads none of these at its start, so it does not start anew.
        {"MPLBACKEND": "svg", "LANGUAGE": "fr"},
        {"PYTHONOPTIMIZE": "1", "LC_ALL": "C"},
        # Names of files are not in UTF-8 before the restart.
        {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"},
    ],
    ids=["without a restart", "after a restart", "after a restart for the locale"],
)
def test_a_foreign_program_gets_the_environment_of_the_command(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(FOREIGN_PROBE)
    first_environment = {"HOME": "/home/h\xe9ros", **variables}

    completed = subprocess.run(
        [sys.executable, str(probe)],
        env=first_environment,
        capture_output=True,
        text=True,
        check=True,
    )

    own_environment, foreign_environment = json.loads(completed.stdout)
    # Python sets it at its start in the locale C.
    foreign_environment.pop("LC_CTYPE", None)
    assert foreign_environment == first_environment
    assert own_environment["LC_ALL"] == "C.UTF-8"
    assert [name for name in own_environment if "SAVED" in name] == []
