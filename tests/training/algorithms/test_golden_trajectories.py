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
SLOWMO: dict[str, dict[str, Any]] = {
    f"{method} with {kind}": PARALLEL_METHODS[method]
    | {"slowmo": {"tau": 4, "beta": 0.6, "exact_average": exact}}
    for method in ("ar-sgd", "local-sgd", "d-psgd", "ad-psgd", "swarm-sgd", *SERVER_METHODS)
    for kind, exact in (("exact slowmo", True), ("slowmo", False))
    if exact or not settings(**PARALLEL_METHODS[method]).traits.exact_average
}
UNITS = {
    "ad-psgd by work units": PEER_METHODS["ad-psgd"],
    "swarm-sgd with slowmo by work units": PEER_METHODS["swarm-sgd"]
    | {"slowmo": {"tau": 4, "beta": 0.6}},
}
ALL = ALL_METHODS | SLOWMO | UNITS
KEYS = (
    "train_loss",
    "val_loss",
    "consensus_distance",
    "learning_rate",
    "seconds",
    "averages_begun",
    "averages_received",
)


def trajectory(method: str) -> dict[str, Any]:
    """Records of four epochs of five steps, and the parameters at the end, projected on waves."""
    simulated = run(
        **ALL[method],
        epochs=4,
        batch_size=16,
        optimizer="adam",
        cluster=UNEVEN_CLUSTER,
        schedule={"warmup_epochs": 1, "decay": "cosine"},
        sharding=None if method in UNITS else "static",
    )
    parameters = models(simulated)
    waves = np.cos(np.outer(np.arange(4), np.arange(parameters.shape[1])))
    epochs = [{key: record.get(key, 0) for key in KEYS} for record in simulated.records[0]]
    return {"epochs": epochs, "parameters": (parameters @ waves.T).tolist()}


@pytest.mark.slow
def test_trajectories_are_the_golden_ones(update_golden: bool) -> None:
    actual = {method: trajectory(method) for method in ALL}
    if update_golden:
        GOLDEN.write_text(json.dumps(actual, indent=1) + "\n", encoding="utf-8")
        pytest.skip(f"{GOLDEN.name} was replaced; review the difference before you commit it")
    expected = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert actual.keys() == expected.keys()
    for method, golden in expected.items():
        # Exponentials and batched products may round otherwise on another machine.
        for epoch, (record, reference) in enumerate(
            zip(actual[method]["epochs"], golden["epochs"], strict=True)
        ):
            assert record == pytest.approx(reference, rel=1e-8, abs=1e-12), (
                f"{method}, epoch {epoch}"
            )
        np.testing.assert_allclose(
            actual[method]["parameters"], golden["parameters"], rtol=1e-8, err_msg=method
        )
