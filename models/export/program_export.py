"""Export of a network to a program of torch itself, for those who run torch but not this project."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

# Not public, but the only way to a GRU over lists of any length: without it torch.export writes one step after the
# other for as many particles as its example has. It is needed to export only; the file holds torch's own GRU.
from torch.export._patches import register_gru_while_loop_decomposition

from models.export.onnx_export import DYNAMIC_AXES, ProbabilityNetwork, example_inputs, exportable, metadata
from models.networks.classifier import Classifier
from models.saved_model import ModelSpec

#: Name of the extra file in the archive that holds the metadata, as JSON.
METADATA_FILE: Final = "metadata.json"


def export_program(model: Classifier, spec: ModelSpec, path: Path, *, run_id: str = "") -> None:
    """Write a program that `torch.export.load` reads, which appears whole or not at all.

    It takes the network's columns by position, raw, as `export_onnx` describes them, and gives the class
    probabilities (batch, num_classes), in single precision on the CPU; batch and num_rows may have any length. The
    metadata of the ONNX file are in `metadata.json` of the archive.

    Args:
        model: The network; it is left as it is.
        spec: How it was built.
        path: The file, by custom `*.pt2`; its folder exists.
        run_id: The run that the model comes from.
    """
    program = _program(exportable(model), model.inputs)
    temporary = path.with_name(f".{path.name}")
    try:
        # A stream, since torch wants names of files to end in .pt2.
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
    # The loop's counter is left over, of which loading would warn.
    for symbol in [symbol for symbol in program.range_constraints if str(symbol).startswith("u")]:
        del program.range_constraints[symbol]
    # Lines of this code, with the folders where it lies on this machine.
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


@contextmanager
def _without_exporter_warnings() -> Iterator[None]:
    """Silence what torch says of its own code for the GRU."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "_check_is_size will be removed", FutureWarning)
        # While it traces, torch's GRU keeps its weights in a list a second time.
        warnings.filterwarnings("ignore", r"The tensor attributes? .*_flat_weights", UserWarning)
        yield
