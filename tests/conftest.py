"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from command_line import BRIEF_JVM
from delphes_files import source_of
from hypothesis import settings
from pyspark import SparkContext

from ingestion.file_info import FileInfo
from ingestion.files import SourceFile, expand, inventory
from ingestion.settings import IngestSettings, SampleSettings
from pipeline.configuration.shell_sections import SparkSettings
from pipeline.machine.spark_session import SparkProvider
from pipeline.machine.spark_start import JVM_VARIABLE
from pipeline.terminal.exit_codes import stop_requested

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "samples"

# The same examples each time; `--hypothesis-profile=default` draws others. The time of an example
# depends on other work of the machine; pytest's time limits end what hangs.
settings.register_profile("any machine", deadline=None, derandomize=True)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The switches that write golden files, and that try more random faults."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write tests/golden and full.yaml instead of comparing them",
    )
    parser.addoption("--rounds", type=int, default=1, help="how often random faults are tried")
    parser.addoption("--first-seed", type=int, default=0, help="of random faults")


class Examples:
    """Modules without an example in a docstring are not searched for one, which takes longer than to read them."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        results = yield
        return [
            result
            for result in results
            if type(result).__name__ != "DoctestModule" or ">>>" in file_path.read_text("utf-8")
        ]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Examples())


def pytest_collectstart() -> None:
    """Modules and tests are no garbage."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests whose names hold an address: two processes would collect different ones, and run none."""
    for item in items:
        if re.search(r"\b0x[0-9a-f]{9,}", item.nodeid):
            raise pytest.UsageError(
                f"{item.nodeid}: name the case by `ids` that are the same in each process"
            )


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no collection of garbage goes through it again."""
    gc.freeze()
    gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a `fault_seed` makes random faults: it runs in each round with another one."""
    if "fault_seed" in metafunc.fixturenames:
        first, rounds = (metafunc.config.getoption(name) for name in ("--first-seed", "--rounds"))
        metafunc.parametrize("fault_seed", range(first, first + rounds))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def provider() -> Iterator[SparkProvider]:
    """Spark on two cores, started once for all tests that ask for it."""
    started = SparkProvider(SparkSettings(master="local[2]"))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def spark(provider: SparkProvider) -> SparkContext:
    """The Spark context of `provider`."""
    return provider.context()


@pytest.fixture(scope="session")
def bundled_samples() -> list[SampleSettings]:
    """The three samples that come with the code."""
    names = ["qcd", "ttbar", "wjets"]
    return [
        SampleSettings(name=name, label=label, files=[str(SAMPLES / f"{name}_13TeV_PU20_*.root")])
        for label, name in enumerate(names)
    ]


@pytest.fixture(scope="session")
def bundled_files(bundled_samples: list[SampleSettings]) -> list[FileInfo]:
    """The checked files of the bundled samples."""
    return inventory(expand(bundled_samples), IngestSettings()).infos


@pytest.fixture
def ttbar_source() -> SourceFile:
    return source_of("ttbar", 1, str(SAMPLES / "ttbar_13TeV_PU20_0.root"))


@pytest.fixture(autouse=True)
def forget_interrupts() -> Iterator[None]:
    """Gives each test the handlers of a new process, and ends its interrupt with it.

    A command that ran in this process leaves its handlers. The interrupt of a later test would then
    stop all commands after it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    stop_requested.clear()


@pytest.fixture(scope="session", autouse=True)
def own_interpreter() -> Iterator[None]:
    """Processes that tests start find this checkout and this Python; their JVMs live too briefly to optimise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        )
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        patch.setenv(JVM_VARIABLE, BRIEF_JVM)
        yield
