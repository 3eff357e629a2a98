"""The configuration of an exported network for NVIDIA's Triton Inference Server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from features.columns import INPUT_COLUMNS
from models.export.onnx_classifier import OUTPUT
from models.networks.network_settings import NetworkSettings

#: Highest number of events that the server puts into one call.
_MOST_EVENTS: Final = 512
#: Triton's names of the input types; the exported network takes numbers of particles in 64 bits.
_TYPES: Final = {"float32": "TYPE_FP32", "int32": "TYPE_INT64"}


def triton_config(settings: NetworkSettings, classes: Sequence[str]) -> str:
    """Return the text of `config.pbtxt` for `model.onnx`.

    Triton takes the model's name from its folder. The shapes are those of one event, since the
    server adds the axis of the batch. Lists of particles have any length; the number of particles
    is one number per event, without an axis of its own.
    """
    lines = ['backend: "onnxruntime"', f"max_batch_size: {_MOST_EVENTS}"]
    for name in settings.inputs:
        column = INPUT_COLUMNS[name]
        data_type = _TYPES[column.dtype]
        dims = _dims(column.shape)
        lines.append(f'input {{ name: "{name}" data_type: {data_type} {dims} }}')
    # A parameter is text, so JSON inside of it is quoted once more.
    class_names = json.dumps(json.dumps(list(classes)))
    lines += [
        f'output {{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ {len(classes)} ] }}',
        "instance_group { count: 1 kind: KIND_CPU }",
        "dynamic_batching { }",
        f'parameters {{ key: "classes" value {{ string_value: {class_names} }} }}',
        'parameters { key: "intra_op_thread_count" value { string_value: "1" } }',
        "",
    ]
    return "\n".join(lines)


def _dims(shape: Sequence[int]) -> str:
    """Write the shape of an event's input in Triton's form.

    All axes but the last have any length, -1. Without an axis the input is one number per event.
    """
    # Triton needs one axis at least; `reshape` removes it before the network.
    if not shape:
        return "dims: [ 1 ] reshape { shape: [ ] }"
    *any_lengths, last_length = shape
    lengths = ["-1"] * len(any_lengths) + [str(last_length)]
    return f"dims: [ {', '.join(lengths)} ]"
