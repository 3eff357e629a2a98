"""The variables of the environment that may influence a run, as one table.

Variables of no row are left alone: HOME, PATH, TMPDIR, LD_LIBRARY_PATH, JAVA_HOME, TZ, proxies and
certificates, credentials and settings of storage (AWS_*, XRD_*, KRB5CCNAME, FSSPEC_*, ~/.aws,
~/.config/fsspec, ~/.netrc), CUDA_VISIBLE_DEVICES, MLFLOW_*, and ours, HEP_PIPELINE_*. Those of MPI
count where ranks run on several hosts.

`python -m pipeline` calls `enter_clean_environment` before its other imports. A program that
mpirun, srun or an executor starts, perhaps on another host, runs as `python -m hep_core.environment
MODULE`. Spark's JVM: `pipeline.machine.spark_start`.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final, NamedTuple


class IgnoredVariables(NamedTuple):
    """Variables of the environment that a run ignores."""

    patterns: tuple[str, ...]
    """Their names, with wildcards."""
    exceptions: tuple[str, ...] = ()
    """Names among these, with wildcards, that a run does not ignore."""


#: Variables that every process of ours ignores, by the program that would read them.
IGNORED_EVERYWHERE: Final = {
    # Modules of users and sites would replace ours and those that we need. -O, -W and other
    # switches change libraries. The seed of hashes stays: executors of Spark must share it, and no
    # result depends on it.
    "Python": IgnoredVariables(
        ("PYTHON*",),
        exceptions=(
            "PYTHONHOME",
            "PYTHONNOUSERSITE",
            "PYTHONUSERBASE",
            "PYTHONPLATLIBDIR",
            "PYTHONHASHSEED",
            "PYTHONIOENCODING",
            "PYTHONUNBUFFERED",
            "PYTHONFAULTHANDLER",
            "PYTHONDONTWRITEBYTECODE",
            "PYTHONPYCACHEPREFIX",
        ),
    ),
    "the shell": IgnoredVariables(
        ("BASH_ENV", "ENV", "CDPATH", "SHELLOPTS", "BASHOPTS", "BASH_FUNC_*")
    ),
    # Java cannot open files whose names have letters that the locale lacks.
    "the locale": IgnoredVariables(("LANG", "LANGUAGE", "LC_*")),
    "matplotlib": IgnoredVariables(("MPLBACKEND", "MATPLOTLIBRC", "SOURCE_DATE_EPOCH")),
    # `train.threads` sets the number of threads. The processor for OpenBLAS stays as a site names
    # it: some builds compute wrong numbers on processors that they mistake.
    "OpenMP, BLAS": IgnoredVariables(
        (
            "OMP_*",
            "GOMP_*",
            "KMP_*",
            "MKL_*",
            "OPENBLAS_*",
            "GOTO_*",
            "BLIS_*",
            "VECLIB_*",
            "NUMEXPR_*",
            "LIBOMP*",
        ),
        exceptions=("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"),
    ),
    "numba": IgnoredVariables(("NUMBA_*",), exceptions=("NUMBA_CACHE_DIR",)),
    "numpy, scipy, pandas": IgnoredVariables(
        ("NPY_*", "NUMPY_*", "SCIPY_*", "SKLEARN_*", "JOBLIB_*", "LOKY_*", "PANDAS_*")
    ),
    "torch": IgnoredVariables(
        (
            "TORCH_*",
            "PYTORCH_*",
            "ATEN_*",
            "DNNL_*",
            "ONEDNN_*",
            "CUBLAS_*",
            "CUDNN_*",
            "NVIDIA_TF32_*",
        )
    ),
    "ONNX": IgnoredVariables(("ORT_*", "ONNX_*", "PROTOCOL_BUFFERS_*")),
    "Keras": IgnoredVariables(("KERAS_*",)),
    "Arrow": IgnoredVariables(
        ("ARROW_*", "PYARROW_*", "HDF5_*"), exceptions=("ARROW_LIBHDFS_DIR",)
    ),
    "Pythia": IgnoredVariables(("PYTHIA8*",)),
    "PySpark": IgnoredVariables(("PYSPARK_*",)),
    # The config names the plugins.
    "plugins": IgnoredVariables(("HEP_PIPELINE_PLUGINS",)),
    # Files, such as logs of ranks, get no colours.
    "the command line": IgnoredVariables(
        ("_TYPER_*", "TYPER_*", "PYDANTIC_*", "FORCE_COLOR", "PY_COLORS", "TTY_*"),
        exceptions=("_TYPER_COMPLETE*",),
    ),
}
#: Variables that Spark ignores where its master is `local`; on a cluster those of the site count.
IGNORED_BY_LOCAL_SPARK: Final = {
    "Spark": IgnoredVariables(("SPARK_*", "PYSPARK_*")),
    "Hadoop": IgnoredVariables(("HADOOP_*", "HDFS_*", "YARN_*", "HIVE_*")),
    "Java": IgnoredVariables(
        ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "*_JAVA_OPTIONS", "CLASSPATH")
    ),
}
#: Variables that MPI ignores where all ranks run on one host: sites set these for their network and
#: their own MPI.
_IGNORED_BY_ONE_HOST_MPI: Final = {
    "MPI": IgnoredVariables(
        ("OMPI_MCA_*", "PRTE_MCA_*", "PMIX_MCA_*", "UCX_*"),
        exceptions=("OMPI_MCA_osc", "OMPI_MCA_*_sm_backing_directory"),
    )
}
#: Variables that name the folders of an Open MPI, perhaps another one than ours.
_MPI_LOCATIONS: Final = ("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX", "OMPI_HOME")
#: Variables that every process of ours gets, with their values.
_SETTINGS: Final = {"LC_ALL": "C.UTF-8", "MPLBACKEND": "agg", "PYTHONSAFEPATH": "1"}
#: The folder with our packages.
_ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib takes time
#: The start of a command line for a module of ours, with its arguments.
MODULE_COMMAND: Final = (sys.executable, "-P", "-m", "hep_core.environment")
_PLUGINS: Final = "HEP_PIPELINE_PLUGINS"
#: Before the names of ignored variables, which so survive a restart of Python. The bare prefix is a
#: variable that tells a restart.
_SAVED: Final = "HEP_PIPELINE_SAVED_"
#: Variables that launchers set for the programs that they start.
_SET_BY_LAUNCHERS: Final = (
    _PLUGINS,
    "PYTHONPATH",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)

#: The environment that this process was started with; empty before it is cleaned.
_first_environment: dict[str, str] = {}


def ignored_names(rows: Mapping[str, IgnoredVariables], names: Iterable[str]) -> Iterator[str]:
    """The names among `names` that any row of a table ignores."""
    for name in names:
        for row in rows.values():
            if _matches(name, row.patterns) and not _matches(name, row.exceptions):
                yield name
                break


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def clean_environment(
    environment: Mapping[str, str], *, keep: Collection[str] = ()
) -> dict[str, str]:
    """Build the environment of a process of ours from another one.

    It leaves out the variables of `IGNORED_EVERYWHERE` and adds those of `_SETTINGS`. Variables in
    `keep` stay as they are.
    """
    settings = dict(_SETTINGS)
    if not _is_installed():
        settings["PYTHONPATH"] = _ROOT
    ignored = {*ignored_names(IGNORED_EVERYWHERE, environment)}.difference(keep)
    cleaned = {name: value for name, value in environment.items() if name not in ignored}
    cleaned |= {name: value for name, value in settings.items() if name not in keep}
    return cleaned


def foreign_environment() -> dict[str, str]:
    """Build the environment for a program of the user: the one that this command was started with.

    In a process that has not cleaned its environment, it is the present one.
    """
    return dict(_first_environment or os.environ)


def one_host_mpi_environment(environment: Mapping[str, str], *, own_mpi: bool) -> dict[str, str]:
    """Build the environment of an mpirun on one host, without MPI parameters of users and sites.

    `own_mpi` says whether mpirun is the one installed with this Python; then variables that name
    another Open MPI are left out too.
    """
    ignored = {*ignored_names(_IGNORED_BY_ONE_HOST_MPI, environment)}
    if own_mpi:
        ignored.update(_MPI_LOCATIONS)
    cleaned = {name: value for name, value in environment.items() if name not in ignored}
    # On one host MPI has shared memory, so it needs no TCP.
    cleaned["OMPI_MCA_btl"] = "^tcp"
    # mpirun would also read parameter files below the home folder.
    cleaned["HOME"] = os.devnull
    for layer in ("OMPI", "PRTE", "PMIX"):
        cleaned[f"{layer}_MCA_mca_base_param_files"] = os.devnull
    return cleaned


def enter_clean_environment(*, keep: Collection[str] = ()) -> None:
    """Clean the environment of this process, which it changes, by `clean_environment`.

    Python has read some variables already at its start. If one of these is ignored, or the names of
    files are not in UTF-8, the process is replaced by a new Python with the same arguments. The
    processes that it starts find our own modules and the installed ones, never those of the current
    folder.
    """
    _first_environment.update(_restored(os.environ))
    cleaned = clean_environment(_first_environment, keep=keep)
    must_restart = _python_has_read_ignored(cleaned, keep) or (
        sys.getfilesystemencoding() != "utf-8"
    )
    if must_restart and sys.executable:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        variables = cleaned | _saved(_first_environment)
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], variables)  # noqa: S606 - our own arguments
    os.environ |= cleaned
    for name in os.environ.keys() - cleaned.keys():
        del os.environ[name]
    # The mask for new files must not take any permission from their owner.
    os.umask(os.umask(0o022) & 0o077)


def _saved(environment: Mapping[str, str]) -> dict[str, str]:
    """The ignored variables of an environment, under names that no row of the table ignores."""
    names = ignored_names(IGNORED_EVERYWHERE, environment)
    return {_SAVED: "1"} | {f"{_SAVED}{name}": environment[name] for name in names}


def _restored(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment as it was before a restart of Python; the same one without a restart."""
    if _SAVED not in environment:
        return dict(environment)
    ours = {*ignored_names(IGNORED_EVERYWHERE, environment)}
    restored = {name: value for name, value in environment.items() if name not in ours}
    for name in environment:
        if name.startswith(_SAVED):
            restored[name.removeprefix(_SAVED)] = restored.pop(name)
    # The bare prefix has become an empty name.
    del restored[""]
    return restored


def _python_has_read_ignored(cleaned: Mapping[str, str], keep: Collection[str]) -> bool:
    """Whether Python has read another value of an ignored variable at its start."""
    python_only = {"Python": IGNORED_EVERYWHERE["Python"]}
    for name in ignored_names(python_only, os.environ):
        value = os.environ[name]
        if name not in keep and value and value != cleaned.get(name):
            return True
    return False


def _is_installed() -> bool:
    """Whether our packages are installed, so that Python finds them without PYTHONPATH."""
    return os.path.basename(_ROOT) in {"site-packages", "dist-packages"}  # noqa: PTH119 - as above


if __name__ == "__main__":
    enter_clean_environment(keep=_SET_BY_LAUNCHERS)
    from hep_core.scarce_memory import return_freed_memory

    return_freed_memory()
    del sys.argv[0]
    if os.environ.get(_PLUGINS):
        from hep_core.plugins import load_from_environment

        load_from_environment()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
