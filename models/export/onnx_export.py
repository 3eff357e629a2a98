"""Export of a network to an ONNX file: raw physics in, class probabilities out."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import onnx
import torch
from torch import Tensor, nn

from features.columns import INPUT_COLUMNS
from models.networks.classifier import Classifier
from models.saved_model import ModelSpec, inputs_json

#: Of the metadata, inputs and output of the file.
FORMAT_VERSION: Final = 1
#: Name of the output, (batch, num_classes).
OUTPUT: Final = "probability"
#: Of 2022: runtimes of today and of some years ago read it.
OPSET: Final = 17
#: Axes of the inputs that may have any length.
DYNAMIC_AXES: Final = {
    name: {0: "batch", 1: "num_rows"} if len(column.shape) == 2 else {0: "batch"}
    for name, column in INPUT_COLUMNS.items()
}


class ProbabilityNetwork(nn.Module):
    """A network and the softmax of its logits: raw columns, as the network takes them, to (B, num_classes)."""

    def __init__(self, network: Classifier) -> None:
        super().__init__()
        self.network = network

    def forward(self, *columns: Tensor) -> Tensor:
        """Probabilities of the classes."""
        return torch.softmax(self.network(*columns), dim=1)


def exportable(model: Classifier) -> ProbabilityNetwork:
    """A copy on the CPU, in single precision and evaluation mode, without gradients, that gives probabilities."""
    return ProbabilityNetwork(copy.deepcopy(model).cpu().float()).eval().requires_grad_(False)


def example_inputs(names: Sequence[str]) -> tuple[Tensor, ...]:
    """Two events of three particles; only their types and numbers of axes enter an export.

    Neither length is 1, which exporters take for a constant.
    """
    shapes = [INPUT_COLUMNS[name].shape for name in names]
    # All zeros, but for the numbers of particles.
    return tuple(
        torch.zeros(2, *(3 for _ in shape[:-1]), shape[-1]) if shape else torch.tensor([3, 2]) for shape in shapes
    )


def metadata(spec: ModelSpec, run_id: str) -> dict[str, str]:
    """What an exported file says of itself; lists and dictionaries are JSON."""
    return {
        "format_version": str(FORMAT_VERSION),
        "run_id": run_id,
        "classes": json.dumps(spec.classes),
        "inputs": json.dumps(inputs_json(spec.settings)),
        "settings": json.dumps(spec.settings.to_json()),
        "definitions": json.dumps(spec.definitions),
    }


def export_onnx(model: Classifier, spec: ModelSpec, path: Path, *, run_id: str = "") -> None:
    """Write an ONNX file, which appears whole or not at all; the same model gives the same bytes.

    Inputs are the network's columns: `hlf` (batch, NUM_HLF) float32, `particles` (batch, num_rows, 19) float32,
    `num_particles` (batch,) int64, in the units of `features.columns`. The output `probability` is
    (batch, num_classes) float32. Batch and num_rows may have any length from 1. Networks in double precision are
    exported in single precision.

    Args:
        model: The network; it is left as it is.
        spec: How it was built.
        path: The file; its folder exists.
        run_id: The run that the model comes from.
    """
    temporary = path.with_name(f".{path.name}")
    axes = {name: DYNAMIC_AXES[name] for name in model.inputs}
    try:
        with _without_exporter_warnings():
            # Not the newer exporter (dynamo): it makes the length of the example's particle lists a constant.
            torch.onnx.export(
                exportable(model),
                example_inputs(model.inputs),
                temporary,
                input_names=list(model.inputs),
                output_names=[OUTPUT],
                dynamic_axes={**axes, OUTPUT: {0: "batch"}},
                opset_version=OPSET,
                dynamo=False,
            )
        exported = onnx.load(temporary)
        onnx.helper.set_model_props(exported, metadata(spec, run_id))
        onnx.checker.check_model(exported, full_check=True)
        onnx.save(exported, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _without_exporter_warnings() -> Iterator[None]:
    """Silence what torch's exporter says each time about itself, and what does not hold here."""
    with warnings.catch_warnings():
        # The exporter is on its way out; torch is pinned, and parity is tested.
        for words in ("You are using the legacy TorchScript-based ONNX export", "The feature will be removed"):
            warnings.filterwarnings("ignore", words, DeprecationWarning)
        # torch's GRU checks the shapes of its input with Python's `if`: always true here.
        warnings.filterwarnings("ignore", "Converting a tensor to a Python boolean", module=r"torch\.nn\.modules\.rnn")
        # The initial state could have got the batch size of the example; it is made from that of the input.
        warnings.filterwarnings("ignore", "Exporting a model to ONNX with a batch_size other than 1", UserWarning)
        yield
