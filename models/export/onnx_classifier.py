"""Runs a network from an ONNX file with onnxruntime, as a trigger does, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
import xxhash
from numpy.typing import NDArray

from hep_core.scarce_memory import is_memory_scarce
from models.errors import DamagedModelError, MissingPluginError, ModelInputError, SavedModelError
from models.inputs import check_inputs_match, input_arrays
from models.networks.network_settings import NetworkSettings
from models.networks.registry import settings_from_json

#: Arrays by name of the input, with the types and shapes of the file's inputs.
Feeds = dict[str, NDArray[Any]]

#: Name of the output, (batch, num_classes).
OUTPUT: Final = "probability"
#: Version of the file's metadata, inputs and output.
FORMAT_VERSION: Final = 2
#: The seal is the last entry of the metadata: field 14 of the model, 42 bytes, with the key `seal`
#: and a value. These bytes are all of it but the value, 32 letters of a digest.
_SEAL_BEGIN: Final = b"\x72\x28\x0a\x04seal\x12\x20"
#: onnxruntime's log level for fatal messages only; errors are raised as exceptions anyway.
_FATAL = 4


@dataclass
class OnnxClassifier:
    """An exported network with its description, read by `load`."""

    session: Any
    """The onnxruntime session that computes it."""
    settings: NetworkSettings
    """Settings of the network from which it was exported."""
    classes: list[str]
    """Names of the classes, in the order of the probabilities."""
    definitions: dict[str, Any]
    """Definitions of the features of its training."""
    reading: dict[str, Any]
    """Settings by which the events of its training were read; empty if unknown."""
    plugin_code: dict[str, str]
    """Digests of the plugins of its training, by part; see `models.saved_model.ModelSpec`."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns that the network takes."""
        return self.settings.inputs

    @classmethod
    def load(cls, path: Path) -> OnnxClassifier:
        """Read a file that `models.export.onnx_export.export_onnx` wrote.

        A file that is missing, damaged, of another version or project, or whose network takes other
        features than this code computes, is a `SavedModelError`.
        """
        session = open_session(path)
        metadata = session.get_modelmeta().custom_metadata_map
        _check_format(path, session, metadata)
        # An error below names the plugins, if they are read by then.
        plugins: list[str] = []
        try:
            classes = json.loads(metadata["classes"])
            inputs = json.loads(metadata["inputs"])
            definitions = json.loads(metadata["definitions"])
            reading = json.loads(metadata.get("reading", "{}"))
            plugins = json.loads(metadata.get("plugins", "[]"))
            plugin_code = json.loads(metadata.get("plugin_code", "{}"))
            settings = settings_from_json(json.loads(metadata["settings"]))
            check_inputs_match(inputs, settings.inputs)
        except MissingPluginError as cause:
            raise cause.for_model(path, plugins) from cause
        except ModelInputError as cause:
            raise SavedModelError(f"{path}: {cause}.") from cause
        except (KeyError, TypeError, ValueError) as cause:
            raise SavedModelError(
                f"{path} has damaged metadata ({cause}). Export the model again."
            ) from cause
        return cls(session, settings, classes, definitions, reading, plugin_code)

    def prepare(self, columns: Mapping[str, NDArray[Any]]) -> Feeds:
        """Make input arrays for `run`, from columns as for `models.inputs.input_arrays`."""
        return input_arrays(columns, self.inputs)

    def run(self, feeds: Feeds) -> NDArray[np.float32]:
        """Compute probabilities, (num_events, num_classes), of input arrays from `prepare`."""
        return np.asarray(self.session.run([OUTPUT], feeds)[0], dtype=np.float32)

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Predict (num_events, num_classes) from columns as for `models.inputs.input_arrays`."""
        return self.run(self.prepare(columns))


class OneEventClassifier:
    """An exported network of fixed shapes, which is called for each event.

    `path` is a file of `models.export.onnx_export.export_one_event`.
    """

    def __init__(self, path: Path) -> None:
        self._session = open_session(path)
        self._shapes = {column.name: tuple(column.shape) for column in self._session.get_inputs()}
        """Shape of each input by name, with the number of events, 1, first."""
        self.inputs = tuple(self._shapes)
        self._num_classes = self._session.get_outputs()[0].shape[1]

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Predict (num_events, num_classes) from columns as for `models.inputs.input_arrays`.

        An event with more particles than the file has rows is a `ModelInputError`.
        """
        # The file does not take the number of particles, but the padding needs it.
        names = list(self.inputs)
        if "particles" in names:
            names.append("num_particles")
        arrays = input_arrays(columns, names)
        num_events = len(arrays[self.inputs[0]])
        probabilities = np.empty((num_events, self._num_classes), np.float32)
        for event in range(num_events):
            # The index in a list keeps the axis of the batch, of length 1.
            feeds = {name: values[[event]] for name, values in arrays.items()}
            if "particles" in feeds:
                # One event at a time, since a file may have very many rows.
                num_rows = self._shapes["particles"][1]
                num_particles = feeds.pop("num_particles")
                feeds["particles"] = _fit_rows(feeds["particles"], num_particles, num_rows)
            probabilities[event] = self._session.run([OUTPUT], feeds)[0][0]
        return probabilities


def _fit_rows(
    particles: NDArray[np.float32], num_particles: NDArray[np.int64], num_rows: int
) -> NDArray[np.float32]:
    """Pad particle lists with zeros to the rows of a file, (B, num_rows, 19).

    The lists are (B, any number of rows, 19); of each event `num_particles` (B,) rows are valid.
    """
    num_events, length, num_features = particles.shape
    if length > num_rows:
        raise ModelInputError(
            f"an event has more than {num_rows} particles. "
            "Give it to `model.onnx`, which takes any number."
        )
    fitted = np.zeros((num_events, num_rows, num_features), np.float32)
    # Only valid rows are copied, so padding is 0 whatever it was.
    is_particle = np.arange(length) < num_particles[:, None]
    fitted[:, :length][is_particle] = particles[is_particle]
    return fitted


def _check_format(path: Path, session: Any, metadata: Mapping[str, str]) -> None:
    """Check that a file is of this project and version, and takes any number of events a call."""
    version = metadata.get("format_version")
    if version is None:
        raise SavedModelError(
            f"{path} is an ONNX file of another project. Give a file that this project exported."
        )
    if version != str(FORMAT_VERSION):
        raise SavedModelError(
            f"{path}: export format version {version}; this code reads {FORMAT_VERSION}. "
            "Export the model again."
        )
    # A fixed length of the first axis means one event a call.
    if any(isinstance(column.shape[0], int) for column in session.get_inputs()):
        raise SavedModelError(
            f"{path} takes one event a call. Give `model.onnx` beside it, which takes any number."
        )


def seal_onnx(file_bytes: bytes) -> bytes:
    """Append a digest to an ONNX file, as the last of its metadata.

    The format, protobuf, lets fields be appended as bytes: readers take them as part of the
    message.
    """
    return file_bytes + _SEAL_BEGIN + xxhash.xxh3_128_hexdigest(file_bytes).encode()


def _check_seal(path: Path, file_bytes: bytes) -> None:
    """Check that a file is as it was sealed; a wrong digest is a `DamagedModelError`.

    Files of earlier releases and other projects have no seal, and pass.
    """
    body, begin, seal = file_bytes.rpartition(_SEAL_BEGIN)
    if begin and seal != xxhash.xxh3_128_hexdigest(body).encode():
        raise DamagedModelError(path, "something changed it since the export", "export")


def open_session(path: Path) -> Any:
    """Open an onnxruntime session of a file, on the CPU; a call runs in the caller's thread.

    A file that cannot be read or run is a `SavedModelError`.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    # Memory patterns are off: onnxruntime would make and keep one for every new number of
    # particles.
    options.enable_mem_pattern = False
    # The arena keeps what the largest batch has taken, and grows by doubling.
    options.enable_cpu_mem_arena = not is_memory_scarce()
    try:
        file_bytes = path.read_bytes()
    except OSError as cause:
        raise SavedModelError(
            f"{path} cannot be read ({cause}). Give a model that was exported to ONNX."
        ) from cause
    _check_seal(path, file_bytes)
    try:
        return onnxruntime.InferenceSession(file_bytes, options, providers=["CPUExecutionProvider"])
    except Exception as cause:  # onnxruntime's errors have no common class.
        raise SavedModelError(
            f"{path} cannot be run as an ONNX model ({cause}). Export the model again."
        ) from cause
