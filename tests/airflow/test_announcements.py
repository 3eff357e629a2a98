"""Airflow runs the DAG with a stand-in for the pipeline: it announces the models in use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
from airflow_home import DAG_FILES, DAG_ID, AirflowHome, write_stand_in

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]

#: The promotions of three nights, try by try: the models in use afterwards, and the exit code.
NIGHTS: tuple[list[tuple[dict[str, str], int]], ...] = (
    # Of two networks one is promoted, and the other one fails in every try.
    [({"hlf": "0001-aa"}, 1), ({"hlf": "0001-aa"}, 1), ({"hlf": "0001-aa"}, 1)],
    # The command is killed after a promotion; the next try has nothing to do.
    [({"hlf": "0002-bb"}, 137), ({"hlf": "0002-bb"}, 99)],
    # Nothing is promoted.
    [({"hlf": "0002-bb"}, 99)],
)


#: Its `promote` takes its outcomes from a file, one each time.
STAND_IN: Final = """
in_use, outcomes = folder / "in_use.json", folder / "outcomes.json"
if command == "status":
    models = json.loads(in_use.read_text())
    versions = {network: {"version": name} for network, name in models.items()}
    print(json.dumps({"in_use": versions}))
if command == "promote":
    (models, exit_code), *later = json.loads(outcomes.read_text())
    in_use.write_text(json.dumps(models))
    outcomes.write_text(json.dumps(later))
    sys.exit(exit_code)
"""


class Site:
    """Nights in an Airflow without a scheduler, whose folder of DAGs has links to ours.

    Args:
        folder: New.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        dags = folder / "dags"
        dags.mkdir()
        for path in DAG_FILES:
            (dags / path.name).symlink_to(path)
        self._home = AirflowHome(
            folder / "airflow",
            HEP_PIPELINE_PYTHON=str(write_stand_in(folder, STAND_IN)),
            HEP_PIPELINE_DIR=str(folder),
            AIRFLOW__CORE__DAGS_FOLDER=str(dags),
        )
        self._home.command("db", "migrate")
        self.states: list[str] = []
        """How the nights ended."""
        self.events: list[list[tuple[str, dict[str, str]]]] = []
        """By night, the address and the models of each event."""

    def run(self, outcomes: list[tuple[dict[str, str], int]]) -> None:
        """Run a night whose promotions have these outcomes."""
        path = self.folder / "outcomes.json"
        path.write_text(json.dumps(outcomes))
        num_events = len(self._all_events())
        completed = self._home.finish("dags", "test", DAG_ID)
        assert json.loads(path.read_text()) == [], completed.stdout[-8000:]
        self.events.append(self._all_events()[num_events:])
        ((state,),) = self._home.rows("select state from dag_run order by id desc limit 1")
        self.states.append(state)

    def _all_events(self) -> list[tuple[str, dict[str, str]]]:
        """Address and models of all events of all nights."""
        query = (
            "select uri, asset_event.extra from asset_event join asset on asset.id = asset_id "
            "order by asset_event.id"
        )
        return [(uri, json.loads(extra)["models"]) for uri, extra in self._home.rows(query)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    created = Site(tmp_path_factory.mktemp("site"))
    for outcomes in NIGHTS:
        created.run(outcomes)
    return created


@pytest.fixture(scope="module")
def registry(site: Site) -> str:
    return (site.folder / "run" / "registry").as_uri()


def test_a_promotion_is_announced_though_that_of_another_network_fails(
    site: Site, registry: str
) -> None:
    assert site.states[0] == "failed"
    assert site.events[0] == [(registry, {"hlf": "0001-aa"})]


def test_a_promotion_by_a_try_that_was_killed_is_announced_once(site: Site, registry: str) -> None:
    assert site.states[1] == "success"
    assert site.events[1] == [(registry, {"hlf": "0002-bb"})]


def test_a_night_without_a_promotion_announces_nothing(site: Site) -> None:
    assert site.states[2] == "success"
    assert site.events[2] == []
