"""Export of a network to a torch program, for users of torch without this project."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

# A private function of torch, but the only way to a GRU over lists of any length: without it torch.export unrolls the
# GRU over the particles of the example. Only the export needs it; the file holds torch's own GRU.
from torch.export._patches import register_gru_while_loop_decomposition

from models.export.onnx_export import DYNAMIC_AXES, ProbabilityNetwork, example_inputs, exportable, metadata
from models.networks.classifier import Classifier
from models.saved_model import ModelSpec

#: File in the archive with the metadata, as JSON.
METADATA_FILE: Final = "metadata.json"


def export_program(model: Classifier, spec: ModelSpec, path: Path, *, run_id: str = "") -> None:
    """Write a program for `torch.export.load` atomically.

    The program takes the network's raw columns by position, as in `export_onnx`, and gives the class probabilities
    (batch, num_classes), in single precision on the CPU. Batch and num_rows may have any length. The archive holds the
    metadata of the ONNX file in `metadata.json`.

    Args:
        model: The network; it stays unchanged.
        spec: Specification of the network.
        path: The file, usually `*.pt2`; its folder exists.
        run_id: The run that the model comes from.
    """
    program = _program(exportable(model), model.inputs)
    temporary = path.with_name(f".{path.name}")
    try:
        # A stream, since torch demands file names that end in .pt2.
        with temporary.open("wb") as stream:
            torch.export.save(program, stream, extra_files={METADATA_FILE: json.dumps(metadata(spec, run_id))})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _program(network: ProbabilityNetwork, inputs: tuple[str, ...]) -> torch.export.ExportedProgram:
    axes = {name: torch.export.Dim(name) for name in ("batch", "num_rows")}
    shapes = tuple({axis: axes[length] for axis, length in DYNAMIC_AXES[name].items()} for name in inputs)
    with _without_exporter_warnings(), register_gru_while_loop_decomposition():
        # One tuple: `forward` takes the columns as *args.
        program = torch.export.export(network, example_inputs(inputs), dynamic_shapes=(shapes,))
    # Remove the unused counter of the loop, since loading would warn about it.
    for symbol in [symbol for symbol in program.range_constraints if str(symbol).startswith("u")]:
        del program.range_constraints[symbol]
    # Remove the traces of this code, which hold folders of this machine.
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


@contextmanager
def _without_exporter_warnings() -> Iterator[None]:
    """Silence torch's warnings about its own code for the GRU."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "_check_is_size will be removed", FutureWarning)
        # During tracing, torch's GRU keeps a second list of its weights.
        warnings.filterwarnings("ignore", r"The tensor attributes? .*_flat_weights", UserWarning)
        yield
