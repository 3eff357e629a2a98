"""Export of a network to ONNX files, from raw features to class probabilities."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import onnx
import torch
from torch import Tensor, nn
from torch.onnx.utils import register_custom_op_symbolic

from features.columns import INPUT_COLUMNS
from models.export.metadata import UNKNOWN, Provenance, metadata
from models.export.one_event_network import OneEventNetwork
from models.networks.classifier import Classifier, ProbabilityNetwork
from models.saved_model import ModelSpec

#: Name of the output, (batch, num_classes).
OUTPUT: Final = "probability"
#: From 2021: onnxruntime 1.10 and later read it.
OPSET: Final = 15
#: Axes of the inputs with any length.
DYNAMIC_AXES: Final = {
    name: {0: "batch", 1: "num_rows"} if len(column.shape) == 2 else {0: "batch"}
    for name, column in INPUT_COLUMNS.items()
}


def single_precision(model: Classifier) -> Classifier:
    """A copy on the CPU, in single precision and evaluation mode, without gradients."""
    return copy.deepcopy(model).cpu().float().eval().requires_grad_(False)


def example_inputs(names: Sequence[str]) -> tuple[Tensor, ...]:
    """Two events of three particles; only their types and numbers of axes matter for an export.

    No length is 1, since exporters treat 1 as a constant.
    """
    shapes = [INPUT_COLUMNS[name].shape for name in names]
    # All inputs are 0, except for the numbers of particles.
    return tuple(
        torch.zeros(2, *(3 for _ in shape[:-1]), shape[-1]) if shape else torch.tensor([3, 2]) for shape in shapes
    )


def export_onnx(model: Classifier, spec: ModelSpec, path: Path, provenance: Provenance = UNKNOWN) -> None:
    """Write an ONNX file atomically; the same model gives the same bytes.

    Inputs are the network's columns: `hlf` (batch, NUM_HLF) float32, `particles` (batch, num_rows, 19) float32,
    `num_particles` (batch,) int64, in the units of `features.columns`. The output `probability` is
    (batch, num_classes) float32. Batch and num_rows may have any length. Networks in double precision are
    exported in single precision.

    Args:
        model: The network; it stays unchanged.
        spec: Specification of the network.
        path: The file; its folder exists.
        provenance: Where the network comes from.
    """
    network = ProbabilityNetwork(single_precision(model))
    axes = {**{name: DYNAMIC_AXES[name] for name in model.inputs}, OUTPUT: {0: "batch"}}
    examples = dict(zip(model.inputs, example_inputs(model.inputs), strict=True))
    write_onnx(network, examples, axes, metadata(spec, model.inputs, provenance), path)


def export_one_event(model: Classifier, spec: ModelSpec, path: Path, provenance: Provenance = UNKNOWN) -> None:
    """Write an ONNX file for one event a call atomically, with fixed shapes and few operators.

    Inputs are `hlf` (1, NUM_HLF) and `particles` (1, 801, 19), as far as the network takes them. The rows behind the
    last particle are 0. The output `probability` is (1, num_classes).

    Args:
        model: The network; it stays unchanged.
        spec: Specification of the network.
        path: The file; its folder exists.
        provenance: Where the network comes from.

    Raises:
        ValueError: The network has no form for one event.
    """
    network = OneEventNetwork(single_precision(model)).eval().requires_grad_(False)
    examples = {name: torch.zeros(1, *INPUT_COLUMNS[name].shape) for name in network.inputs}
    write_onnx(network, examples, {}, metadata(spec, network.inputs, provenance), path)


# ONNX has it, torch's older exporter does not know.
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
        network: The module, from tensors to one tensor.
        examples: Inputs by name.
        axes: Names of the axes with any length, by name of the input or output and number of the axis.
        properties: Metadata of the file.
        path: The file; its folder exists.
        output: Name of the output.
    """
    temporary = path.with_name(f".{path.name}")
    try:
        with without_exporter_warnings():
            # The newer exporter (dynamo) would make the length of the example's particle lists a constant.
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
        exported = onnx.load(temporary)
        onnx.helper.set_model_props(exported, properties)
        onnx.checker.check_model(exported, full_check=True)
        onnx.save(exported, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def without_exporter_warnings() -> Iterator[None]:
    """Silence warnings of torch's exporters about themselves, and those that do not apply here."""
    with warnings.catch_warnings():
        # The older exporter is deprecated; torch is pinned, and parity is tested.
        for words in ("You are using the legacy TorchScript-based ONNX export", "The feature will be removed"):
            warnings.filterwarnings("ignore", words, DeprecationWarning)
        # torch's GRU checks the shapes of its input with Python's `if`: always true here.
        warnings.filterwarnings("ignore", "Converting a tensor to a Python boolean", module=r"torch\.nn\.modules\.rnn")
        # The warning is about an initial state with the example's batch size; here it has the input's batch size.
        warnings.filterwarnings("ignore", "Exporting a model to ONNX with a batch_size other than 1", UserWarning)
        # In a program, torch's own code for the GRU; during tracing it keeps a second list of its weights.
        warnings.filterwarnings("ignore", "_check_is_size will be removed", FutureWarning)
        warnings.filterwarnings("ignore", r"The tensor attributes? .*_flat_weights", UserWarning)
        yield
