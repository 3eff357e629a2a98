"""Every method on real MPI ranks, against the same method in the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from feature_datasets import write_dataset
from training_runs import flat_weights, make_spec, records, summary

from features.dataset import FeatureDataset
from hep_studies.run_in_simulator import simulate_workload
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.simulator.simulate import Simulated
from training.launching.launcher import launch_all
from training.launching.rank import RunSpec
from training.loop.summary import count_actions, summarize_rank

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

#: Uneven on purpose: ranks get different numbers of rows, and with 3 ranks a group is left out each
#: epoch.
ROWS = {"train": [20] * 6 + [7], "val": [15, 15], "test": [10]}
SLOWMO = {"tau": 4, "beta": 0.5}
#: Each worker has a slow momentum of its own. With beta 0.5 that keeps workers apart by as much as
#: half of what no average at all does (the widest of 40 seeds in the simulator: 0.44, with beta 0.2
#: 0.28).
GOSSIP_SLOWMO = {"tau": 4, "beta": 0.2}
SYNCHRONOUS: list[dict[str, Any]] = [
    {"algorithm": "ar-sgd", "reader": "petastorm", "optimizer": "sgd", "momentum": 0.9},
    {"algorithm": "ar-sgd", "slowmo": SLOWMO},
    {"algorithm": "local-sgd", "local_steps": 3},
    {"algorithm": "local-sgd", "local_steps": 2, "slowmo": SLOWMO, "optimizer_state": "reset"},
    {"algorithm": "d-psgd"},
    {"algorithm": "d-psgd", "topology": "complete", "slowmo": SLOWMO},
    {"algorithm": "d-psgd", "slowmo": {**SLOWMO, "exact_average": True}},
    {"algorithm": "qg-dsgdm", "topology": "exponential", "optimizer": "sgd", "skew": {}},
    {"algorithm": "choco-sgd", "skew": {}, "reader": "arrow"},
    {"algorithm": "diloco", "local_steps": 3, "optimizer": "adamw", "weight_decay": 0.1},
    {"algorithm": "mpca", "cycle_steps": 2, "alpha_free": 1, "beta_ramp": 3, "gamma_ramp": 3},
    {"algorithm": "easgd", "local_steps": 3, "synchronous": True},
    {"algorithm": "easgd", "synchronous": True, "slowmo": {**SLOWMO, "exact_average": True}},
]
SERVERS: list[dict[str, Any]] = [
    {"algorithm": "agn", "local_steps": 4},
    {"algorithm": "easgd", "local_steps": 2, "staleness_bound": 3},
    {"algorithm": "sharded", "overlap": "thread", "bound": 4, "drop_rate": 0.5},
]
GOSSIP: list[dict[str, Any]] = [
    {"algorithm": "ad-psgd"},
    {"algorithm": "ad-psgd", "slowmo": GOSSIP_SLOWMO},
    {"algorithm": "ad-psgd", "slowmo": {**GOSSIP_SLOWMO, "exact_average": True}},
    {"algorithm": "swarm-sgd"},
    {
        "algorithm": "swarm-sgd",
        "local_steps_law": "geometric",
        "topology": "ring",
        "slowmo": GOSSIP_SLOWMO,
    },
    {"algorithm": "swarm-sgd", "slowmo": {**GOSSIP_SLOWMO, "exact_average": True}},
]
#: Done twice.
TWICE: dict[str, Any] = {"workers": 3, "algorithm": "d-psgd", "slowmo": SLOWMO}
SHARDS: dict[str, Any] = {"algorithm": "mpca", "schedule": {"decay": "cosine"}}
#: All that ranks do on the CPU they do on a GPU, where there is one.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXACT: dict[str, Any] = {"workers": 3, "precision": "float64", "device": DEVICE}
GOSSIP_RUN: dict[str, Any] = {"workers": 3, "device": DEVICE, "epochs": 8, "learning_rate": 0.03}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(
        tmp_path_factory.mktemp("data") / "set", rows=ROWS, class_weights=[2.0, 1.0, 0.5]
    )


@pytest.fixture(scope="module")
def runs_of_ranks(
    dataset: FeatureDataset, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, RunSpec]:
    """All runs of three ranks, by their settings; ranks are started once, which takes seconds."""
    selected = [
        *(EXACT | keys for keys in SYNCHRONOUS), *(GOSSIP_RUN | keys for keys in (*GOSSIP, *SERVERS, SHARDS)), TWICE,
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("runs")
    runs = {
        str(keys): make_spec(dataset, folder / f"run-{index}", **keys)
        for index, keys in enumerate(selected)
    }
    runs["again"] = make_spec(dataset, folder / "again", **TWICE)
    launch_all(list(runs.values()), folder / "job", on_progress=lambda *_: None)
    return runs


def simulated(dataset: FeatureDataset, run: RunSpec) -> Simulated:
    """The same run in the simulator, from the same initial weights."""
    return simulate_workload(run.workload.open(), run.train, ClusterSettings())


@pytest.mark.parametrize("settings", SYNCHRONOUS, ids=str)
def test_synchronous_methods_do_on_mpi_what_they_do_in_the_simulator(
    dataset: FeatureDataset, runs_of_ranks: dict[str, RunSpec], settings: dict[str, Any]
) -> None:
    run = runs_of_ranks[str(EXACT | settings)]
    expected = simulated(dataset, run)
    for rank, (actual, reference) in enumerate(
        zip(records(run.out_dir), expected.records, strict=True)
    ):
        for key in ("train_loss", "val_loss", "consensus_distance", "samples", "worker_val_loss"):
            assert actual[-1][key] == pytest.approx(reference[-1][key], rel=1e-9, abs=1e-11), (
                rank,
                key,
            )
    totals = summary(run.out_dir)["acted"]
    assert totals == count_actions(
        run.train, [summarize_rank(record) for record in expected.records]
    )
    assert min(totals.values()) > 0


@pytest.fixture(scope="module")
def distance_alone(
    dataset: FeatureDataset, tmp_path_factory: pytest.TempPathFactory
) -> dict[bool, float]:
    """Consensus distance of workers that never average, without and with slow momentum."""
    alone: dict[str, Any] = GOSSIP_RUN | {"algorithm": "swarm-sgd", "local_steps": 10**6}
    distances = {}
    for slow, extra in {False: {}, True: {"slowmo": GOSSIP_SLOWMO}}.items():
        run = make_spec(dataset, tmp_path_factory.mktemp("alone") / "out", **alone, **extra)
        distances[slow] = simulated(dataset, run).records[0][-1]["consensus_distance"]
    return distances


@pytest.fixture(scope="module")
def untrained(dataset: FeatureDataset, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Validation loss of the initial weights.

    What a worker that waits for nobody finds after its first epoch says little: the others may be
    epochs ahead. The best loss is below 0.47 of this one for each of 5 seeds in the simulator, with
    pauses of workers as on a busy machine; against that of the first epoch it was up to 0.7 of it.
    """
    nothing: dict[str, Any] = GOSSIP_RUN | {
        "algorithm": "swarm-sgd",
        "learning_rate": 1e-12,
        "epochs": 1,
    }
    run = make_spec(dataset, tmp_path_factory.mktemp("untrained") / "out", **nothing)
    loss: float = simulated(dataset, run).records[0][0]["val_loss"]
    return loss


@pytest.mark.parametrize("settings", GOSSIP, ids=str)
def test_gossip_methods_learn_on_mpi_and_their_counters_add_up(
    runs_of_ranks: dict[str, RunSpec],
    untrained: float,
    distance_alone: dict[bool, float],
    settings: dict[str, Any],
) -> None:
    run = runs_of_ranks[str(GOSSIP_RUN | settings)]
    totals = summary(run.out_dir)
    assert totals["best_val_loss"] < 0.7 * untrained
    assert totals["samples"] == 8 * sum(ROWS["train"])
    ranks = totals["per_rank"]
    assert (
        sum(rank["averages_begun"] for rank in ranks)
        == sum(rank["averages_received"] for rank in ranks)
        > 0
    )
    for rank in ranks:
        if run.train.algorithm.name == "ad-psgd":
            assert rank["averages_begun"] + rank["averages_skipped"] == rank["steps"]
        # On a busy machine a rank may come to few steps, or none.
        assert rank["averages_begun"] == 0 or rank["bytes_sent"] > 0
    assert sum(rank["seconds_by_kind"]["communicate"] for rank in ranks) > 0
    assert totals["consensus_distance"] < 0.7 * distance_alone["slowmo" in settings]


def test_shards_of_mpca_travel_beside_the_steps_on_mpi(
    runs_of_ranks: dict[str, RunSpec], untrained: float
) -> None:
    run = runs_of_ranks[str(GOSSIP_RUN | SHARDS)]
    totals = summary(run.out_dir)
    assert totals["best_val_loss"] < 0.7 * untrained
    assert totals["samples"] == 8 * sum(ROWS["train"])
    assert len({rank["cycles"] for rank in totals["per_rank"]}) == 1
    # On a busy machine a rank may take few steps, or none.
    assert totals["per_rank"][0]["cycles"] >= 3
    assert max(rank["mean_steps_per_cycle"] for rank in totals["per_rank"]) >= 1
    assert max(rank["max_staleness"] for rank in totals["per_rank"]) >= 1
    assert all(rank["bytes_sent"] > 0 for rank in totals["per_rank"])
    assert totals["sums"] == totals["per_rank"][0]["cycles"]
    assert totals["steps_per_cycle"] > 0
    assert 0 < totals["effective_share"] <= 1


@pytest.mark.parametrize("settings", SERVERS, ids=str)
def test_methods_with_a_server_learn_on_mpi_and_their_counters_add_up(
    runs_of_ranks: dict[str, RunSpec], untrained: float, settings: dict[str, Any]
) -> None:
    run = runs_of_ranks[str(GOSSIP_RUN | settings)]
    totals, histories = summary(run.out_dir), records(run.out_dir)
    assert totals["best_val_loss"] < 0.7 * untrained
    assert totals["samples"] == 8 * sum(ROWS["train"])
    for rank, history in zip(totals["per_rank"], histories, strict=True):
        assert sum(sum(record["staleness"].values()) for record in history) == rank["pushes"]
    assert sum(rank["pushes"] for rank in totals["per_rank"]) > 0
    assert sum(rank["seconds_by_kind"]["communicate"] for rank in totals["per_rank"]) > 0


def test_float32_runs_of_a_synchronous_method_are_the_same_bit_by_bit(
    runs_of_ranks: dict[str, RunSpec],
) -> None:
    np.testing.assert_array_equal(
        flat_weights(runs_of_ranks[str(TWICE)].out_dir),
        flat_weights(runs_of_ranks["again"].out_dir),
    )
