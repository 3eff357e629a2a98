"""What the tests on clusters start from, and the table that they print (`make test-cluster`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from cluster_runs import Local, Tried
from network_hosts import Network, network, why_not

from pipeline.machine.spark_session import SparkProvider

TABLE: Final = Path(__file__).resolve().parents[2] / "docs" / "clusters" / "tried.md"
_BEGIN, _END = "<!-- table -->\n", "<!-- end of table -->\n"
_ROWS: Final = pytest.StashKey[list[tuple[str, str, str]]]()


@pytest.fixture
def tried(request: pytest.FixtureRequest) -> Tried:
    """Notes a row of the table: the cluster, what ran there, and how it compares with the local result."""
    rows = request.config.stash.setdefault(_ROWS, [])
    return lambda *row: rows.append(row)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table; with --update-golden, write it into the docs if nothing was left out."""
    rows = sorted(config.stash.get(_ROWS, []))
    if not rows:
        return
    head = ("cluster", "what ran", "compared with the undisturbed run on one machine")
    table = "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * 3, *rows))
    terminalreporter.section("tried on clusters")
    terminalreporter.write(table)
    if config.getoption("--update-golden"):
        before, _, rest = TABLE.read_text(encoding="utf-8").partition(_BEGIN)
        TABLE.write_text(before + _BEGIN + table + _END + rest.partition(_END)[2], encoding="utf-8")


@pytest.fixture(scope="session")
def local(provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory) -> Local:
    """The undisturbed results of one machine."""
    return Local(provider, tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Four hosts."""
    if why_not():
        pytest.skip(why_not())
    with network(4, tmp_path_factory.mktemp("network")) as made:
        yield made
