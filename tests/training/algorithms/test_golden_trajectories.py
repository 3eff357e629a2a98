"""Twenty steps of each method equal the reviewed ones; `pytest --update-golden` replaces these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated import (
    ALL_METHODS,
    PARALLEL_METHODS,
    PEER_METHODS,
    SERVER_METHODS,
    UNEVEN_CLUSTER,
    models,
    run,
    settings,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "trajectories.json"
SLOWMO_BASES = ("ar-sgd", "local-sgd", "d-psgd", "ad-psgd", "swarm-sgd", *SERVER_METHODS)
WORK_UNIT_METHODS = {
    "ad-psgd by work units": PEER_METHODS["ad-psgd"],
    "swarm-sgd with slowmo by work units": PEER_METHODS["swarm-sgd"]
    | {"slowmo": {"tau": 4, "beta": 0.6}},
}
KEYS = (
    "train_loss",
    "val_loss",
    "consensus_distance",
    "learning_rate",
    "seconds",
    "averages_begun",
    "averages_received",
)


def slowmo_methods() -> dict[str, dict[str, Any]]:
    """Methods with slow momentum, with the exact average and, where they can, without it."""
    methods = {}
    for base in SLOWMO_BASES:
        method = PARALLEL_METHODS[base]
        slowmo = {"tau": 4, "beta": 0.6}
        with_average = slowmo | {"exact_average": True}
        methods[f"{base} with exact slowmo"] = method | {"slowmo": with_average}
        if not settings(**method).traits.exact_average:
            without_average = slowmo | {"exact_average": False}
            methods[f"{base} with slowmo"] = method | {"slowmo": without_average}
    return methods


METHODS = ALL_METHODS | slowmo_methods() | WORK_UNIT_METHODS


def trajectory(method: str) -> dict[str, Any]:
    """Records of four epochs of five steps, and the parameters at the end, projected on waves."""
    sharding = None if method in WORK_UNIT_METHODS else "static"
    simulated = run(
        **METHODS[method],
        epochs=4,
        batch_size=16,
        optimizer="adam",
        cluster=UNEVEN_CLUSTER,
        schedule={"warmup_epochs": 1, "decay": "cosine"},
        sharding=sharding,
    )
    parameters = models(simulated)
    num_parameters = parameters.shape[1]
    waves = np.cos(np.outer(np.arange(4), np.arange(num_parameters)))
    projected = parameters @ waves.T
    epochs = []
    for record in simulated.records[0]:
        selected_record = {key: record.get(key, 0) for key in KEYS}
        epochs.append(selected_record)
    return {"epochs": epochs, "parameters": projected.tolist()}


@pytest.mark.slow
def test_trajectories_are_the_golden_ones(update_golden: bool) -> None:
    trajectories = {method: trajectory(method) for method in METHODS}
    if update_golden:
        GOLDEN.write_text(json.dumps(trajectories, indent=1) + "\n", encoding="utf-8")
        pytest.skip(f"{GOLDEN.name} was replaced; review the difference before you commit it")

    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert trajectories.keys() == golden.keys()
    # Exponentials and batched products may round otherwise on another machine.
    for method, expected in golden.items():
        epochs = trajectories[method]["epochs"]
        parameters = trajectories[method]["parameters"]
        assert len(epochs) == len(expected["epochs"])
        for epoch, expected_record in enumerate(expected["epochs"]):
            record = pytest.approx(expected_record, rel=1e-8, abs=1e-12)
            assert epochs[epoch] == record, f"{method}, epoch {epoch}"
        golden_parameters = expected["parameters"]
        np.testing.assert_allclose(parameters, golden_parameters, rtol=1e-8, err_msg=method)
