"""What the tests on clusters start from, and the table that they print (`make test-cluster`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from cluster_runs import AddRow, LocalResults
from network_hosts import Network, network, reason_against_hosts

from pipeline.machine.spark_session import SparkProvider

TABLE: Final = Path(__file__).with_name("tried.md")
_BEGIN, _END = "<!-- table -->\n", "<!-- end of table -->\n"
_HEAD: Final = ("cluster", "what ran", "compared with the undisturbed run on one machine")
_ROWS: Final = pytest.StashKey[list[tuple[str, str, str]]]()


@pytest.fixture
def tried(request: pytest.FixtureRequest) -> AddRow:
    """Notes a row of the table: the cluster, what ran there, and how it compares with the local result."""
    rows = request.config.stash.setdefault(_ROWS, [])
    return lambda *row: rows.append(row)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table; with --update-golden, write it into the docs, where rows of tests that did not run stay."""
    actual = {row[:2]: row for row in config.stash.get(_ROWS, [])}
    if not actual:
        return
    terminalreporter.section("tried on clusters")
    terminalreporter.write(_table(actual))
    if config.getoption("--update-golden"):
        state_before, _, remainder = TABLE.read_text(encoding="utf-8").partition(_BEGIN)
        written, _, state_after = remainder.partition(_END)
        cells = [tuple(line.strip("| \n").split(" | ")) for line in written.splitlines()[2:]]
        earlier = {row[:2]: row for row in cells if len(row) == len(_HEAD)}
        TABLE.write_text(
            state_before + _BEGIN + _table({**earlier, **actual}) + _END + state_after,
            encoding="utf-8",
        )


def _table(rows: Mapping[tuple[str, str], tuple[str, str, str]]) -> str:
    return "".join(
        f"| {' | '.join(row)} |\n" for row in (_HEAD, ("---",) * 3, *sorted(rows.values()))
    )


@pytest.fixture(scope="session")
def local(provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory) -> LocalResults:
    return LocalResults(provider, tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    if reason_against_hosts():
        pytest.skip(reason_against_hosts())
    with network(4, tmp_path_factory.mktemp("network")) as created:
        yield created
