"""A network in an ONNX file, run by onnxruntime as a trigger runs it: no torch in the loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from models.errors import SavedModelError
from models.export.onnx_export import FORMAT_VERSION, OUTPUT
from models.inputs import input_tensors
from models.networks.network_settings import NetworkSettings
from models.networks.registry import settings_from_json
from models.saved_model import inputs_json

#: Arrays by the names of the inputs, each in the type and shape that the file takes.
Feeds = dict[str, NDArray[Any]]

#: onnxruntime's level of messages that leaves out all but those before it gives up; errors are raised besides.
_FATAL = 4


class OnnxClassifier:
    """An exported network; made by `load`.

    Attributes:
        inputs: Columns that it takes.
        classes: Names of the classes, in the order of the probabilities.
        settings: The network's.
        definitions: How the features that it was trained on were computed.
    """

    inputs: tuple[str, ...]
    classes: list[str]
    settings: NetworkSettings
    definitions: dict[str, Any]

    def __init__(
        self, session: Any, settings: NetworkSettings, classes: list[str], definitions: dict[str, Any]
    ) -> None:
        self.inputs = settings.inputs
        self.classes = classes
        self.settings = settings
        self.definitions = definitions
        self._session = session

    @classmethod
    def load(cls, path: Path, *, threads: int = 1) -> OnnxClassifier:
        """Read a file that `models.export.onnx_export.export_onnx` wrote.

        Args:
            path: The file.
            threads: How many share one call; with one, a call runs in the caller's thread.

        Raises:
            SavedModelError: There is no such file, it is no ONNX, damaged, of another version, or not of a network
                that takes the features which this code computes.
        """
        session = _session(path, threads)
        found = session.get_modelmeta().custom_metadata_map
        version = found.get("format_version")
        if version is None:
            raise SavedModelError(f"{path} is ONNX, but not of a network of this project. Give a file it exported.")
        if version != str(FORMAT_VERSION):
            raise SavedModelError(
                f"{path}: export format version {version}, this code reads {FORMAT_VERSION}. Export the model again."
            )
        try:
            classes, inputs, definitions = (json.loads(found[key]) for key in ("classes", "inputs", "definitions"))
            settings = settings_from_json(json.loads(found["settings"]))
        except (KeyError, TypeError, ValueError) as cause:
            raise SavedModelError(f"{path} has damaged metadata ({cause}). Export the model again.") from cause
        if inputs != inputs_json(settings):
            raise SavedModelError(
                f"{path} was made for other features than this code computes. Train on features of this code, and "
                f"export that model."
            )
        _check_graph(path, session, settings, classes)
        return cls(session, settings, classes, definitions)

    def prepare(self, columns: Mapping[str, NDArray[Any]]) -> Feeds:
        """What `run` takes, from columns as `models.inputs.input_tensors` takes them.

        Raises:
            InputError: A column has another shape, or an event more particles than rows, or less than none.
        """
        tensors = input_tensors(columns, self.inputs, dtype=torch.float32)
        return {name: tensor.numpy() for name, tensor in zip(self.inputs, tensors, strict=True)}

    def run(self, feeds: Feeds) -> NDArray[np.float32]:
        """Probabilities, (num_events, num_classes), of what `prepare` made."""
        if len(feeds[self.inputs[0]]) == 0:
            # onnxruntime ends the whole process where a GRU gets no events.
            return np.empty((0, len(self.classes)), dtype=np.float32)
        return np.asarray(self._session.run([OUTPUT], feeds)[0], dtype=np.float32)

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Probabilities, (num_events, num_classes), of the columns that `models.prediction.probabilities` takes.

        Particle lists are cut to the longest event.

        Args:
            columns: Of B events: `hlf` (B, NUM_HLF), `particles` (B, 801 * 19), `num_particles` (B,), raw physics in
                the units of `features.columns`; those not among `inputs` are left alone.

        Raises:
            InputError: A column has another shape, or an event more particles than rows, or less than none.
        """
        return self.run(self.prepare(columns))


def _session(path: Path, threads: int) -> Any:
    """The file, ready to run on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    # It would plan its memory anew, and keep the plan, for every new number of particles.
    options.enable_mem_pattern = False
    try:
        content = path.read_bytes()
    except OSError as cause:
        raise SavedModelError(f"{path} cannot be read ({cause}). Give a model that was exported to ONNX.") from cause
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as cause:  # Its errors have no common class.
        raise SavedModelError(f"{path} holds no ONNX that can be run ({cause}). Export the model again.") from cause


def _check_graph(path: Path, session: Any, settings: NetworkSettings, classes: Any) -> None:
    """The metadata could be right where the network is another one."""
    names = tuple(each.name for each in session.get_inputs())
    shapes = {each.name: each.shape for each in session.get_outputs()}
    # The shape of the classes as this project writes them: a list of names, one for each probability.
    width = len(classes) if isinstance(classes, list) else None
    if names != settings.inputs or OUTPUT not in shapes or shapes[OUTPUT][1:] != [width]:
        raise SavedModelError(
            f"{path} takes {list(names)} and gives {shapes}: not what its metadata say, a network '{settings.name}' "
            f"with the classes {classes}. Export the model again."
        )
