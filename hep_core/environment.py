"""What of the environment may influence a run: one table, applied where a process of ours starts.

Variables of no row are left alone: HOME, PATH, TMPDIR, LD_LIBRARY_PATH, JAVA_HOME, TZ, proxies and certificates,
credentials and settings of storage (AWS_*, XRD_*, KRB5CCNAME, FSSPEC_*, ~/.aws, ~/.config/fsspec, ~/.netrc),
CUDA_VISIBLE_DEVICES, MLFLOW_*, and ours, HEP_PIPELINE_*. Those of MPI count where ranks run on several hosts.

`python -m pipeline` calls `enter_clean_environment` before its other imports.
`python -m hep_core.environment MODULE ...` does so for a program that mpirun, srun or an executor starts, perhaps on
another host. Spark's JVM: `pipeline.machine.spark_session`.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final, NamedTuple


class Row(NamedTuple):
    """Variables that a run ignores."""

    names: tuple[str, ...]
    """Their names, with wildcards."""
    kept: tuple[str, ...] = ()
    """Those of them that count."""


#: What every process of ours ignores, by what would read it.
IGNORED_EVERYWHERE: Final = {
    # Modules of users and sites would replace ours and those that we need; -O, -W and other switches change libraries.
    # No result depends on the seed of hashes, which executors of Spark must have in common.
    "Python": Row(
        ("PYTHON*",),
        kept=(
            *(
                "PYTHONHOME",
                "PYTHONNOUSERSITE",
                "PYTHONUSERBASE",
                "PYTHONPLATLIBDIR",
                "PYTHONHASHSEED",
            ),
            *("PYTHONIOENCODING", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER"),
            *("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"),
        ),
    ),
    "the shell": Row(("BASH_ENV", "ENV", "CDPATH", "SHELLOPTS", "BASHOPTS", "BASH_FUNC_*")),
    # Java names no file with letters that the locale lacks.
    "the locale": Row(("LANG", "LANGUAGE", "LC_*")),
    "matplotlib": Row(("MPLBACKEND", "MATPLOTLIBRC", "SOURCE_DATE_EPOCH")),
    # `train.threads` is the number of threads. A site that names the processor for OpenBLAS has a reason: some builds
    # compute wrong numbers on processors that they take for others.
    "OpenMP, BLAS": Row(
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
        kept=("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"),
    ),
    "numba": Row(("NUMBA_*",), kept=("NUMBA_CACHE_DIR",)),
    "numpy, scipy, pandas": Row(
        ("NPY_*", "NUMPY_*", "SCIPY_*", "SKLEARN_*", "JOBLIB_*", "LOKY_*", "PANDAS_*")
    ),
    "torch": Row(
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
    "ONNX": Row(("ORT_*", "ONNX_*", "PROTOCOL_BUFFERS_*")),
    "Keras": Row(("KERAS_*",)),
    "Arrow": Row(("ARROW_*", "PYARROW_*", "HDF5_*"), kept=("ARROW_LIBHDFS_DIR",)),
    "Pythia": Row(("PYTHIA8*",)),
    "PySpark": Row(("PYSPARK_*",)),
    # The config says which there are.
    "plugins": Row(("HEP_PIPELINE_PLUGINS",)),
    # Files, such as logs of ranks, get no colours.
    "the command line": Row(
        ("_TYPER_*", "TYPER_*", "PYDANTIC_*", "FORCE_COLOR", "PY_COLORS", "TTY_*"),
        kept=("_TYPER_COMPLETE*",),
    ),
}
#: What Spark ignores where its master is `local`; on a cluster the settings of the site count.
IGNORED_BY_LOCAL_SPARK: Final = {
    "Spark": Row(("SPARK_*", "PYSPARK_*")),
    "Hadoop": Row(("HADOOP_*", "HDFS_*", "YARN_*", "HIVE_*")),
    "Java": Row(
        ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "*_JAVA_OPTIONS", "CLASSPATH")
    ),
}
#: What MPI ignores where all ranks run on one host: sites set these for their network and their own MPI.
ONE_HOST_MPI: Final = {
    "MPI": Row(
        ("OMPI_MCA_*", "PRTE_MCA_*", "PMIX_MCA_*", "UCX_*"),
        kept=("OMPI_MCA_osc", "OMPI_MCA_*_sm_backing_directory"),
    )
}
#: Where another Open MPI is.
_OTHER_MPI: Final = ("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX", "OMPI_HOME")
#: What a process of ours has instead.
_SET: Final = {"LC_ALL": "C.UTF-8", "MPLBACKEND": "agg", "PYTHONSAFEPATH": "1"}
#: The folder with our packages.
_ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib takes time
#: The start of a command line for a module of ours, with its arguments.
MODULE_COMMAND: Final = (sys.executable, "-P", "-m", "hep_core.environment")
_PLUGINS: Final = "HEP_PIPELINE_PLUGINS"
#: What launchers set for the programs that they start.
_OF_LAUNCHERS: Final = (
    _PLUGINS,
    "PYTHONPATH",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)


def ignored_names(rows: Mapping[str, Row], names: Iterable[str]) -> Iterator[str]:
    """Those of some variables that rows of a table ignore."""
    for name in names:
        if any(_matches(name, row.names) and not _matches(name, row.kept) for row in rows.values()):
            yield name


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def clean_environment(before: Mapping[str, str], *, kept: Collection[str] = ()) -> dict[str, str]:
    """The environment of a process of ours."""
    own = _SET if _is_installed() else {**_SET, "PYTHONPATH": _ROOT}
    own = {name: value for name, value in own.items() if name not in kept}
    without = {name for name in ignored_names(IGNORED_EVERYWHERE, before) if name not in kept}
    return {name: value for name, value in before.items() if name not in without} | own


def one_host_mpi_environment(before: Mapping[str, str], *, own_mpi: bool) -> dict[str, str]:
    """The environment of an mpirun on one host, where parameters of users and sites do not count.

    `own_mpi` says that mpirun is that of this Python.
    """
    without = {*ignored_names(ONE_HOST_MPI, before), *(_OTHER_MPI if own_mpi else ())}
    files = {f"{layer}_MCA_mca_base_param_files": os.devnull for layer in ("OMPI", "PRTE", "PMIX")}
    # MPI has shared memory here. mpirun also reads files below the home folder.
    own = {"OMPI_MCA_btl": "^tcp", "HOME": os.devnull, **files}
    return {name: value for name, value in before.items() if name not in without} | own


def enter_clean_environment(*, kept: Collection[str] = ()) -> None:
    """Clean the environment of this process; start Python again if it read what is ignored already.

    The processes that it starts find our own modules and the installed ones, never those of the current folder.
    """
    after = clean_environment(os.environ, kept=kept)
    has_read = {
        name
        for name in ignored_names({"Python": IGNORED_EVERYWHERE["Python"]}, os.environ)
        if name not in kept
    }
    has_read = {
        name for name in has_read if os.environ[name] and os.environ[name] != after.get(name)
    }
    if (has_read or sys.getfilesystemencoding() != "utf-8") and sys.executable:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], after)  # noqa: S606 - our own words
    os.environ |= after
    for name in os.environ.keys() - after.keys():
        del os.environ[name]
    # Files that their owner cannot read or write are of no use.
    os.umask(os.umask(0o022) & 0o077)


def _is_installed() -> bool:
    """Whether our packages lie among the installed ones, which stand behind the standard library."""
    return os.path.basename(_ROOT) in {"site-packages", "dist-packages"}  # noqa: PTH119 - as above


if __name__ == "__main__":
    enter_clean_environment(kept=_OF_LAUNCHERS)
    del sys.argv[0]
    if os.environ.get(_PLUGINS):
        from hep_core.plugins import load_from_environment

        load_from_environment()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
