"""Hosts and local results for the tests on clusters, and the table that these print."""

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
Rows = Mapping[tuple[str, ...], tuple[str, ...]]
_ROWS: Final = pytest.StashKey[list[tuple[str, str, str]]]()


@pytest.fixture
def add_row(request: pytest.FixtureRequest) -> AddRow:
    """A function that adds a row of the table: cluster, run, comparison with the local result."""
    rows = request.config.stash.setdefault(_ROWS, [])

    def add(cluster: str, run: str, comparison: str) -> None:
        rows.append((cluster, run, comparison))

    return add


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table; with --update-golden, write it too."""
    rows = {row[:2]: row for row in config.stash.get(_ROWS, [])}
    if not rows:
        return
    terminalreporter.section("tried on clusters")
    terminalreporter.write(_table(rows))
    if config.getoption("--update-golden"):
        _update_table(rows)


def _update_table(rows: Rows) -> None:
    """Write new rows into the table; rows of tests that did not run stay."""
    head, _, remainder = TABLE.read_text(encoding="utf-8").partition(_BEGIN)
    old_table, _, tail = remainder.partition(_END)
    old_rows = {}
    for line in old_table.splitlines()[2:]:
        cells = tuple(line.strip("| \n").split(" | "))
        if len(cells) == len(_HEAD):
            old_rows[cells[:2]] = cells
    table = _table({**old_rows, **rows})
    TABLE.write_text(f"{head}{_BEGIN}{table}{_END}{tail}", encoding="utf-8")


def _table(rows: Rows) -> str:
    lines = [_HEAD, ("---",) * len(_HEAD), *sorted(rows.values())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


@pytest.fixture(scope="session")
def local(provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory) -> LocalResults:
    return LocalResults(provider, tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    if reason_against_hosts():
        pytest.skip(reason_against_hosts())
    with network(4, tmp_path_factory.mktemp("network")) as created:
        yield created
