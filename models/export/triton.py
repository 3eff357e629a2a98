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
_TYPES: Final = {"float32": "TYPE_FP32", "int32": "TYPE_INT64"}


def triton_config(settings: NetworkSettings, classes: Sequence[str]) -> str:
    """The text of `config.pbtxt` for `model.onnx`; the server takes the model's name from its folder.

    Lists of particles have any length; the number of particles is one number per event, without an axis of its own.
    """
    lines = ['backend: "onnxruntime"', f"max_batch_size: {_MOST_EVENTS}"]
    for name in settings.inputs:
        column = INPUT_COLUMNS[name]
        shape = ", ".join(map(str, [*(-1 for _ in column.shape[:-1]), *column.shape[-1:]]))
        dims = f"dims: [ {shape} ]" if shape else "dims: [ 1 ] reshape { shape: [ ] }"
        lines.append(f'input {{ name: "{name}" data_type: {_TYPES[column.dtype]} {dims} }}')
    return "\n".join(
        [
            *lines,
            f'output {{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ {len(classes)} ] }}',
            "instance_group { count: 1 kind: KIND_CPU }",
            "dynamic_batching { }",
            f'parameters {{ key: "classes" value {{ string_value: {json.dumps(json.dumps(list(classes)))} }} }}',
            'parameters { key: "intra_op_thread_count" value { string_value: "1" } }',
            "",
        ]
    )
