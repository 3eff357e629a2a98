"""Export of a network to ONNX files, from raw features to class probabilities."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import onnx
import torch
from torch import Tensor, nn
from torch.onnx.utils import register_custom_op_symbolic

from features.columns import INPUT_COLUMNS, NUM_PARTICLE_FEATURES, hlf_names, max_particles
from models.export.one_event_network import OneEventNetwork
from models.export.onnx_classifier import FORMAT_VERSION, OUTPUT, seal_onnx
from models.inputs import inputs_json
from models.networks.classifier import Classifier, ProbabilityNetwork
from models.saved_model import ModelSpec

#: Version of ONNX's operators, from 2021: onnxruntime 1.10 and later read it.
OPSET: Final = 15


class Provenance(NamedTuple):
    """The origin of an exported network, and the thresholds that were measured for it."""

    run_id: str = ""
    """Identifier of its training; no two trainings have the same, also of different run folders."""
    code: Mapping[str, str] = {}
    """Version of the code that trained it, and of the code that exported it."""
    digests: Mapping[str, str] = {}
    """Digests of the features of its training, and of the network itself."""
    working_points: Mapping[str, Any] | None = None
    """Thresholds from an evaluation, as `models.evaluation.evaluation` writes them; None if there
    is none."""


#: The provenance of a network of which nothing is known.
UNKNOWN: Final = Provenance()


def single_precision(model: Classifier) -> Classifier:
    """Copy a network to the CPU, in single precision and evaluation mode, without gradients."""
    return copy.deepcopy(model).cpu().float().eval().requires_grad_(False)


def export_onnx(
    model: Classifier, spec: ModelSpec, path: Path, provenance: Provenance = UNKNOWN
) -> None:
    """Write an ONNX file atomically; the same model gives the same bytes.

    Networks in double precision are exported in single precision. Batch and num_rows may have any
    length. The file has these inputs, if the network takes them, in the units of
    `features.columns`, and one output:

    - `hlf`, (batch, NUM_HLF) float32: high-level features.
    - `particles`, (batch, num_rows, 19) float32: particle lists.
    - `num_particles`, (batch,) int64: number of valid rows of `particles`.
    - `probability`, (batch, num_classes) float32: the output.
    """
    # Two events of three particles; no length is 1, since exporters treat 1 as a constant.
    all_examples = {
        "hlf": torch.zeros(2, len(hlf_names())),
        "particles": torch.zeros(2, 3, NUM_PARTICLE_FEATURES),
        "num_particles": torch.tensor([3, 2]),
    }
    examples = {name: all_examples[name] for name in model.inputs}
    axes = {name: {0: "batch"} for name in (*model.inputs, OUTPUT)}
    if "particles" in axes:
        axes["particles"][1] = "num_rows"
    shapes = {name: INPUT_COLUMNS[name].shape for name in model.inputs}
    properties = metadata(spec, shapes, provenance)
    network = ProbabilityNetwork(single_precision(model))
    write_onnx(network, examples, axes, properties, path)


def export_one_event(
    model: Classifier, spec: ModelSpec, path: Path, provenance: Provenance = UNKNOWN
) -> None:
    """Write an ONNX file for one event a call atomically, with fixed shapes and few operators.

    Inputs are `hlf` (1, NUM_HLF) and `particles` (1, num_rows, 19), if the network takes them. The
    caps on the particles of its training give `num_rows`. The rows behind the last particle are 0.
    The output `probability` is (1, num_classes).
    """
    network = OneEventNetwork(single_precision(model))
    network.eval().requires_grad_(False)
    shapes = {name: INPUT_COLUMNS[name].shape for name in network.inputs}
    if "particles" in shapes:
        shapes["particles"] = (max_particles(spec.definitions), NUM_PARTICLE_FEATURES)
    examples = {name: torch.zeros(1, *shape) for name, shape in shapes.items()}
    properties = metadata(spec, shapes, provenance)
    write_onnx(network, examples, {}, properties, path)


# ONNX has the operator asinh, but torch's older exporter does not know it.
register_custom_op_symbolic("aten::asinh", lambda graph, value: graph.op("Asinh", value), OPSET)


def write_onnx(
    network: nn.Module,
    examples: Mapping[str, Tensor],
    axes: Mapping[str, Mapping[int, str]],
    properties: dict[str, str],
    path: Path,
    *,
    output: str = OUTPUT,
) -> None:
    """Write a module as an ONNX file, all or nothing.

    Args:
        network: The module.
        examples: An example of each input by name; they give the types and fixed lengths.
        axes: Names of the axes with any length, by name of the input or output and number of the
            axis.
        properties: Metadata of the file.
        path: The file, which is renamed from a hidden one when it is complete.
        output: Name of the output.
    """
    temporary = path.with_name(f".{path.name}")
    try:
        # The warnings are about the exporter, which is pinned with torch, and shapes, which parity
        # checks.
        with warnings.catch_warnings(action="ignore"):
            # The newer exporter (dynamo) would make the length of the example's particle lists a
            # constant.
            torch.onnx.export(
                network,
                tuple(examples.values()),
                temporary,
                input_names=list(examples),
                output_names=[output],
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,
            )
        # The metadata and the seal, a digest of the file, are added to the exporter's file.
        exported = onnx.load(temporary)
        onnx.helper.set_model_props(exported, properties)
        onnx.checker.check_model(exported, full_check=True)
        sealed = seal_onnx(exported.SerializeToString())
        temporary.write_bytes(sealed)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def metadata(
    spec: ModelSpec, shapes: Mapping[str, Sequence[int]], provenance: Provenance
) -> dict[str, str]:
    """Collect the metadata of an exported file as texts; lists and dictionaries are JSON.

    `shapes` are those of one event in the file's inputs, which may be fewer than those of the
    network, by name.
    """
    inputs = inputs_json(list(shapes))
    for name, shape in shapes.items():
        inputs[name]["shape"] = list(shape)
    # `described` also has inputs; those of the file replace them.
    document = {
        **spec.described(),
        "inputs": inputs,
        "code": provenance.code,
        "digests": provenance.digests,
        "working_points": provenance.working_points,
    }
    properties = {"format_version": str(FORMAT_VERSION), "run_id": provenance.run_id}
    for key, value in document.items():
        properties[key] = json.dumps(value)
    return properties
