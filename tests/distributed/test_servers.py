"""Methods of servers, pairs and pushes on MPI ranks: as in the simulator, and without any loss."""

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
Results = list[dict[str, Any]]
"""The results of `servers.train` by rank."""
OVERLAPPING = {"algorithm": "sharded", "overlap": "thread", "shards": 2}
#: Methods whose order is fixed: ranks take steps in turn, or all together.
ORDERED: dict[str, dict[str, Any]] = {
    **{name: section for name, section in SERVER_METHODS.items() if "overlap" not in section},
    "sharded sparse": {"algorithm": "sharded", "drop_rate": 0.5},
    "ad-psgd": GOSSIP_METHODS["ad-psgd"],
    "swarm-sgd": {"algorithm": "swarm-sgd", "local_steps": 2},
    "dynsgd with slowmo": SERVER_METHODS["dynsgd"] | {"slowmo": {"tau": 2}},
    "easgd with slowmo": SERVER_METHODS["easgd"] | {"slowmo": {"tau": 2}},
    "sharded with slowmo": SERVER_METHODS["sharded"] | {"slowmo": {"tau": 2}},
}
#: All ranks push when they are ready.
CONCURRENT: dict[str, dict[str, Any]] = {
    "downpour": SERVER_METHODS["downpour"],
    "downpour zealous": SERVER_METHODS["downpour zealous"],
    "overlapping": OVERLAPPING,
    "sparse overlapping": OVERLAPPING | {"drop_rate": 0.5, "bound": 2},
    "sgp": {"algorithm": "sgp", "overlap": True},
    "sgp to two": {"algorithm": "sgp", "overlap": True, "peers": 2},
    # All wait for each outer step, which changes nothing without momentum.
    "slowmo": SERVER_METHODS["downpour"]
    | {"slowmo": {"tau": 4, "beta": 0.0, "exact_average": True}},
}
ON_SOCKETS = ("agn", "async-diloco", "sharded sparse", "swarm-sgd")


def options_of_ordered(name: str) -> dict[str, Any]:
    return {"in_turn": not ORDERED[name].get("synchronous"), "curvature": 0.7}


def train_in_simulator(section: dict[str, Any], **options: Any) -> Results:
    """The results of `servers.train` on the virtual clock."""
    results: dict[int, dict[str, Any]] = {}
    clock = VirtualClock()
    train = runpy.run_path(str(PROGRAMS / "servers.py"))["train"]

    async def run(transport: Transport) -> None:
        results[transport.rank] = await train(transport, section, **options)

    for transport in SimNetwork(clock, ClusterSettings(), RANKS).transports():
        clock.spawn(run(transport), f"worker {transport.rank}")
    clock.run()
    return [results[rank] for rank in range(RANKS)]


def ordered_names(*, in_memory: bool) -> list[str]:
    """The methods with a fixed order that ranks train in memory or through sockets."""
    return [name for name in ORDERED if in_memory or name in ON_SOCKETS]


def case_of_all_methods(*, in_memory: bool) -> Case:
    names = ordered_names(in_memory=in_memory)
    sections = [ORDERED[name] for name in names] + list(CONCURRENT.values())
    concurrent_options = {"in_turn": False, "curvature": 0.0, "steps": 200}
    options = [options_of_ordered(name) for name in names]
    options += [concurrent_options] * len(CONCURRENT)
    arguments = {
        "sections": [train_section(section) for section in sections],
        "options": options,
        "in_memory": in_memory,
    }
    return Case(RANKS, "servers:train_all", arguments)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(
        tmp_path_factory.mktemp("ranks"),
        {(in_memory,): case_of_all_methods(in_memory=in_memory) for in_memory in (True, False)},
    )


@pytest.fixture(params=[True, False], ids=["memory", "sockets"])
def results_by_method(request: pytest.FixtureRequest, cases: Cases) -> dict[str, Results]:
    """The results of the ranks for each method; concurrent ones have a prefix."""
    names = ordered_names(in_memory=request.param)
    names += [f"concurrent {name}" for name in CONCURRENT]
    results_by_rank = cases.results(request.param)
    return {
        name: [results[index] for results in results_by_rank] for index, name in enumerate(names)
    }


def test_ranks_do_on_mpi_what_they_do_in_the_simulator(
    results_by_method: dict[str, Results],
) -> None:
    for name in results_by_method.keys() & ORDERED.keys():
        simulated = train_in_simulator(train_section(ORDERED[name]), **options_of_ordered(name))
        for rank in range(RANKS):
            actual, expected = results_by_method[name][rank], simulated[rank]
            for key in ("result", "model", "current", "unsent"):
                np.testing.assert_allclose(
                    actual[key], expected[key], atol=1e-12, err_msg=f"{name}, {key}"
                )
            assert actual["counters"] == expected["counters"]
            assert all(count > 0 for count in actual["counters"].values())
            expected_staleness = {str(age): count for age, count in expected["staleness"].items()}
            assert actual["staleness"] == expected_staleness


def test_nothing_is_lost_when_all_push_at_once(results_by_method: dict[str, Results]) -> None:
    for name in CONCURRENT:
        results = results_by_method[f"concurrent {name}"]
        server = np.array(results[0]["result"])
        applied = (server - np.linspace(-1, 1, 7)) / 0.1
        if CONCURRENT[name]["algorithm"] == "sgp":
            # Its model is the mean over the workers.
            applied *= RANKS
        unsent = np.sum([result["unsent"] for result in results], axis=0)
        expected = results[0]["sum_of_pulls"]
        np.testing.assert_allclose(applied - unsent, expected, atol=1e-9, err_msg=name)
        assert all(result["result"] == results[0]["result"] for result in results)
