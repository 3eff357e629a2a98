"""Methods with a server or of pairs on MPI ranks: as in the simulator in a fixed order, and without loss in any."""

from __future__ import annotations

import runpy
from typing import Any

import numpy as np
import pytest
from rank_programs import PROGRAMS, Case, Cases
from simulated import GOSSIP_METHODS, SERVER_METHODS
from training_runs import train_section

from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.simulator.transport import SimNetwork
from hep_studies.simulator.virtual_time import VirtualClock
from training.transports.transport import Transport

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

RANKS = 3
BESIDE = {"algorithm": "sharded", "overlap": "thread", "shards": 2}
#: Methods whose order is fixed: those of which ranks take steps in turn, and those that take them together.
FIXED = {name: chosen for name, chosen in SERVER_METHODS.items() if "overlap" not in chosen}
FIXED["sharded sparse"] = {"algorithm": "sharded", "drop_rate": 0.5}
PAIRS = {
    "ad-psgd": GOSSIP_METHODS["ad-psgd"],
    "swarm-sgd": {"algorithm": "swarm-sgd", "local_steps": 2},
}
FIXED |= PAIRS
FIXED |= {
    f"{name} with slowmo": SERVER_METHODS[name] | {"slowmo": {"tau": 2}}
    for name in ("dynsgd", "easgd", "sharded")
}
#: All ranks push when they are ready.
LOOSE: dict[str, dict[str, Any]] = {
    "downpour": SERVER_METHODS["downpour"],
    "downpour zealous": SERVER_METHODS["downpour zealous"],
    "beside": BESIDE,
    "sparse beside": BESIDE | {"drop_rate": 0.5, "bound": 2},
    # All wait for each outer step, which changes nothing without momentum.
    "slowmo": SERVER_METHODS["downpour"]
    | {"slowmo": {"tau": 4, "beta": 0.0, "exact_average": True}},
}
ON_SOCKETS = ("agn", "sharded sparse", "swarm-sgd")


def way(name: str) -> dict[str, Any]:
    """How the ranks of a method with a fixed order step."""
    return {"in_turn": not FIXED[name].get("synchronous"), "curvature": 0.7}


def simulated(section: dict[str, Any], **how: Any) -> list[dict[str, Any]]:
    """The result of `servers.train` on the virtual clock."""
    actual: dict[int, dict[str, Any]] = {}
    clock = VirtualClock()
    train = runpy.run_path(str(PROGRAMS / "servers.py"))["train"]

    async def run(transport: Transport) -> None:
        actual[transport.rank] = await train(transport, section, **how)

    for transport in SimNetwork(clock, ClusterSettings(), RANKS).transports():
        clock.spawn(run(transport), f"worker {transport.rank}")
    clock.run()
    return [actual[rank] for rank in range(RANKS)]


def names_of(*, in_memory: bool) -> list[str]:
    """The methods with a fixed order that ranks take in memory or through sockets."""
    return [name for name in FIXED if in_memory or name in ON_SOCKETS]


def case_of(*, in_memory: bool) -> Case:
    """All methods on ranks."""
    names, loose = names_of(in_memory=in_memory), {"in_turn": False, "curvature": 0.0, "steps": 200}
    arguments = {
        "sections": [
            train_section(section)
            for section in [*(FIXED[name] for name in names), *LOOSE.values()]
        ],
        "ways": [way(name) for name in names] + [loose] * len(LOOSE),
        "in_memory": in_memory,
    }
    return Case(RANKS, "servers:train_all", arguments)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(
        tmp_path_factory.mktemp("ranks"),
        {(each,): case_of(in_memory=each) for each in (True, False)},
    )


@pytest.fixture(params=[True, False], ids=["memory", "sockets"])
def ranks(request: pytest.FixtureRequest, cases: Cases) -> dict[str, list[dict[str, Any]]]:
    """What the ranks found of each method; those without a fixed order are called loose."""
    names = [*names_of(in_memory=request.param), *(f"loose {name}" for name in LOOSE)]
    found = cases.results(request.param)
    return {
        name: list(outcomes) for name, outcomes in zip(names, zip(*found, strict=True), strict=True)
    }


def test_ranks_do_on_mpi_what_they_do_in_the_simulator(
    ranks: dict[str, list[dict[str, Any]]],
) -> None:
    for name in ranks.keys() & FIXED.keys():
        for actual, expected in zip(
            ranks[name], simulated(train_section(FIXED[name]), **way(name)), strict=True
        ):
            for key in ("result", "own", "current", "not_sent"):
                np.testing.assert_allclose(
                    actual[key], expected[key], atol=1e-12, err_msg=f"{name}, {key}"
                )
            assert actual["counted"] == expected["counted"]
            assert all(times > 0 for times in actual["counted"].values())
            assert actual["staleness"] == {
                str(age): times for age, times in expected["staleness"].items()
            }


def test_nothing_is_lost_when_all_push_at_once(ranks: dict[str, list[dict[str, Any]]]) -> None:
    for name in LOOSE:
        trained = ranks[f"loose {name}"]
        sent = (np.array(trained[0]["result"]) - np.linspace(-1, 1, 7)) / 0.1
        kept_back = -sum(np.array(rank["not_sent"]) for rank in trained)
        np.testing.assert_allclose(sent + kept_back, trained[0]["pulled"], atol=1e-9, err_msg=name)
        assert all(rank["result"] == trained[0]["result"] for rank in trained)
