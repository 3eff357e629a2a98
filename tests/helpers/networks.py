"""Small networks of every kind, and random raw events for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from feature_datasets import CLASSES, random_particles
from numpy.typing import NDArray
from torch import Tensor

from features.columns import NUM_PARTICLE_FEATURES, SCALED_LIMIT, hlf_names
from models.export.onnx_export import export_onnx
from models.networks.classifier import Classifier
from models.networks.registry import NETWORKS, ModelName
from models.networks.scaling_layer import Scaler
from models.saved_model import ModelSpec, build

NAMES: list[ModelName] = list(NETWORKS)
ON_PARTICLES: list[ModelName] = [name for name in NAMES if "particles" in NETWORKS[name].inputs]
#: Networks on particle lists with their settings: all of them, and those whose settings change what
#: they do with lists.
VARIANTS: list[tuple[ModelName, dict[str, Any]]] = [
    *((name, {}) for name in ON_PARTICLES),
    *((name, {"read_from": "start"}) for name in ("particles", "inclusive")),
    ("deepsets", {"pooling": "sum"}),
]
SCALERS = {
    "hlf": Scaler(
        np.linspace(-50, 200, len(hlf_names())).tolist(),
        np.linspace(0.1, 60, len(hlf_names())).tolist(),
    ),
    "particles": Scaler(
        np.linspace(-5, 20, NUM_PARTICLE_FEATURES).tolist(),
        np.linspace(0.1, 30, NUM_PARTICLE_FEATURES).tolist(),
    ),
}
#: The same, with every third column logarithmic above a size of its own, and the limit of the
#: features.
ROBUST_SCALERS = {
    name: scaler._replace(
        log_above=[0.0 if index % 3 else 0.1 + index for index in range(len(scaler.mean))],
        limit=SCALED_LIMIT,
    )
    for name, scaler in SCALERS.items()
}


def small_spec(name: ModelName, **settings: Any) -> ModelSpec:
    """A spec with the scalers above and small layers, with changes."""
    network_kind = NETWORKS[name]
    small = {"hidden": [8, 4], "gru_width": 7, "dense_width": 5}
    small_settings = {key: size for key, size in small.items() if key in network_kind.model_fields}
    scalers = {column: SCALERS[column] for column in network_kind.inputs if column in SCALERS}
    return ModelSpec(network_kind(**(small_settings | settings)), CLASSES, scalers)


def small_network(
    network_kind: ModelName | ModelSpec,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 1,
    **settings: Any,
) -> Classifier:
    """A network of that name or spec with weights from the seed."""
    spec = network_kind
    if not isinstance(spec, ModelSpec):
        spec = small_spec(spec, **settings)
    torch.manual_seed(seed)
    default_dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        return build(spec)
    finally:
        torch.set_default_dtype(default_dtype)


@cache
def onnx_file(name: ModelName, *, dtype: torch.dtype = torch.float32, **settings: Any) -> bytes:
    """The ONNX file of a network with weights from seed 1, exported once."""
    network = small_network(name, dtype=dtype, **settings)
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        export_onnx(network, small_spec(name, **settings), path)
        return path.read_bytes()


def random_events(
    lengths: Sequence[int],
    *,
    rows: int | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 1,
) -> dict[str, Tensor]:
    """Raw events with given numbers of particles, in lists of `rows` rows with random padding.

    By default lists are as long as the longest event.
    """
    rng = np.random.default_rng(seed)
    rows = max(1, *lengths) if rows is None else rows
    shapes = {
        "hlf": (len(lengths), len(hlf_names())),
        "particles": (len(lengths), rows, NUM_PARTICLE_FEATURES),
    }
    events = {}
    for name, shape in shapes.items():
        mean, std = SCALERS[name][:2]
        numbers = rng.normal(mean, std, shape)
        events[name] = torch.from_numpy(numbers).to(dtype)
    events["num_particles"] = torch.tensor(lengths, dtype=torch.int64)
    return events


def random_columns(
    lengths: Sequence[int] | NDArray[Any], *, seed: int = 1
) -> dict[str, NDArray[Any]]:
    """Events with given numbers of particles, as they lie in the features Parquet."""
    rng = np.random.default_rng(seed)
    counts = np.array(lengths, dtype=int)
    hlf = rng.normal(100, 50, (len(counts), len(hlf_names())))
    labels = rng.integers(0, 3, len(counts))
    return {
        "hlf": hlf.astype(np.float32),
        "particles": random_particles(rng, labels, counts),
        "num_particles": counts.astype(np.int32),
    }


def run(model: Classifier, events: dict[str, Tensor]) -> Tensor:
    """Logits of events, of which the network is given what it asks for."""
    logits: Tensor = model(*(events[name] for name in model.inputs))
    return logits


def gradients(model: Classifier, events: dict[str, Tensor]) -> list[Tensor]:
    """Gradients of all parameters for a loss that tells the events and classes apart."""
    logits = run(model, events)
    factors = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype, device=logits.device)
    loss = (logits * factors.view_as(logits)).sum()
    return list(torch.autograd.grad(loss, list(model.parameters())))
