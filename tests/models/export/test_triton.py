"""The configuration for Triton, parsed as the server does: protobuf text of its own messages."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from networks import NAMES

from features.columns import hlf_names
from models.export.onnx_classifier import OUTPUT
from models.export.triton import triton_config
from models.networks.registry import NETWORKS, ModelName


@cache
def messages() -> Any:
    """Triton's messages from its client, without its package, which imports grpc."""
    package = importlib.util.find_spec("tritonclient")
    assert package is not None, "tritonclient, of the group dev, is not installed"
    (folder,) = package.submodule_search_locations or ()
    spec = importlib.util.spec_from_file_location(
        "model_config_pb2", Path(folder) / "grpc" / "model_config_pb2.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(text: str) -> Any:
    """The text as a `ModelConfig`.

    Raises:
        text_format.ParseError: It is none.
    """
    return text_format.Parse(text, messages().ModelConfig())


#: Names with what JSON and the text form of protocol buffers escape.
CLASSES = ["QCD", 't\u0304"\\t', "W+jets"]


@pytest.mark.parametrize("name", NAMES)
def test_the_server_reads_names_types_and_shapes(name: ModelName) -> None:
    actual, numbers = parsed(triton_config(NETWORKS[name](), CLASSES)), messages()
    shapes = {"hlf": [len(hlf_names())], "particles": [-1, 19], "num_particles": [1]}
    assert actual.backend == "onnxruntime"
    assert actual.max_batch_size > 1
    assert [(tensor.name, list(tensor.dims)) for tensor in actual.input] == [
        (column, shapes[column]) for column in NETWORKS[name].inputs
    ]
    for tensor in actual.input:
        is_count = tensor.name == "num_particles"
        assert tensor.data_type == (numbers.TYPE_INT64 if is_count else numbers.TYPE_FP32)
        # One number per event: without an axis besides that of the batch.
        assert tensor.HasField("reshape") == is_count
    assert [(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in actual.output] == [
        (OUTPUT, numbers.TYPE_FP32, [3])
    ]
    assert actual.instance_group[0].kind == numbers.ModelInstanceGroup.KIND_CPU
    assert json.loads(actual.parameters["classes"].string_value) == CLASSES
    assert actual.parameters["intra_op_thread_count"].string_value == "1"
