"""A network as a torch program, for users of torch without this project."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# A private function of torch, but the only way to a GRU over lists of any length: without it torch.export unrolls the
# GRU over the particles of the example. Only the export needs it; the file holds torch's own GRU.
from torch.export._patches import register_gru_while_loop_decomposition

from models.export.metadata import UNKNOWN, Provenance, metadata
from models.export.onnx_export import (
    DYNAMIC_AXES,
    example_inputs,
    single_precision,
    without_exporter_warnings,
)
from models.inputs import input_tensors
from models.networks.classifier import Classifier, ProbabilityNetwork
from models.saved_model import ModelSpec

#: File in the archive with the metadata, as JSON.
METADATA_FILE: Final = "metadata.json"


class ProgramClassifier:
    """A file of `export_program`, run by torch.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        files = {METADATA_FILE: ""}
        with path.open("rb") as stream:
            self._program = torch.export.load(stream, extra_files=files).module()
        self.metadata: dict[str, str] = json.loads(files[METADATA_FILE])
        """The metadata of the ONNX file."""
        self.inputs = tuple(json.loads(self.metadata["inputs"]))

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Probabilities, (num_events, num_classes), for columns as for `models.inputs.input_tensors`."""
        with torch.inference_mode():
            found: Tensor = self._program(*input_tensors(columns, self.inputs, dtype=torch.float32))
        return np.asarray(found.numpy(), dtype=np.float32)


def export_program(model: Classifier, spec: ModelSpec, path: Path, provenance: Provenance = UNKNOWN) -> None:
    """Write a program for `torch.export.load` atomically.

    The program takes the network's raw columns by position, as in `export_onnx`, and gives the class probabilities
    (batch, num_classes), in single precision on the CPU. Batch and num_rows may have any length. The archive holds the
    metadata of the ONNX file in `metadata.json`.

    Args:
        model: The network; it stays unchanged.
        spec: Specification of the network.
        path: The file, usually `*.pt2`; its folder exists.
        provenance: Where the network comes from.
    """
    program = _program(ProbabilityNetwork(single_precision(model)), model.inputs)
    content = metadata(spec, model.inputs, provenance)
    temporary = path.with_name(f".{path.name}")
    try:
        # A stream, since torch demands file names that end in .pt2.
        with temporary.open("wb") as stream:
            torch.export.save(program, stream, extra_files={METADATA_FILE: json.dumps(content)})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _program(network: ProbabilityNetwork, inputs: tuple[str, ...]) -> torch.export.ExportedProgram:
    axes = {name: torch.export.Dim(name) for name in ("batch", "num_rows")}
    shapes = tuple({axis: axes[length] for axis, length in DYNAMIC_AXES[name].items()} for name in inputs)
    with without_exporter_warnings(), register_gru_while_loop_decomposition():
        # One tuple: `forward` takes the columns as *args.
        program = torch.export.export(network, example_inputs(inputs), dynamic_shapes=(shapes,))
    # Remove the unused counter of the loop, since loading would warn about it.
    for symbol in [symbol for symbol in program.range_constraints if str(symbol).startswith("u")]:
        del program.range_constraints[symbol]
    # Remove the traces of this code, which hold folders of this machine.
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program
