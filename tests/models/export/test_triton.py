"""The configuration for Triton, parsed as the server does: protobuf text of its `model_config.proto`."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import Message
from networks import NAMES

from models.export.onnx_export import OUTPUT
from models.export.triton import triton_config
from models.networks.registry import NETWORKS, ModelName

_FIELD = descriptor_pb2.FieldDescriptorProto
#: The part of the server's `ModelConfig` that is used: by message, its fields with number, type, and whether repeated.
_MESSAGES = {
    "Reshape": [("shape", 1, _FIELD.TYPE_INT64, True)],
    "ModelInput": [
        ("name", 1, _FIELD.TYPE_STRING, False),
        ("data_type", 2, "DataType", False),
        ("dims", 4, _FIELD.TYPE_INT64, True),
        ("reshape", 5, "Reshape", False),
    ],
    "ModelOutput": [
        ("name", 1, _FIELD.TYPE_STRING, False),
        ("data_type", 2, "DataType", False),
        ("dims", 3, _FIELD.TYPE_INT64, True),
    ],
    "InstanceGroup": [("count", 2, _FIELD.TYPE_INT32, False), ("kind", 4, "Kind", False)],
    "Batching": [("preferred_batch_size", 1, _FIELD.TYPE_INT32, True)],
    "Parameter": [("string_value", 1, _FIELD.TYPE_STRING, False)],
    "Entry": [("key", 1, _FIELD.TYPE_STRING, False), ("value", 2, "Parameter", False)],
    "ModelConfig": [
        ("name", 1, _FIELD.TYPE_STRING, False),
        ("max_batch_size", 4, _FIELD.TYPE_INT32, False),
        ("input", 5, "ModelInput", True),
        ("output", 6, "ModelOutput", True),
        ("instance_group", 7, "InstanceGroup", True),
        ("dynamic_batching", 11, "Batching", False),
        ("parameters", 14, "Entry", True),
        ("backend", 17, _FIELD.TYPE_STRING, False),
    ],
}
_ENUMS = {"DataType": {"TYPE_INVALID": 0, "TYPE_INT64": 9, "TYPE_FP32": 11}, "Kind": {"KIND_AUTO": 0, "KIND_CPU": 2}}


def parsed(text: str) -> Message:
    """The text as a `ModelConfig`.

    Raises:
        text_format.ParseError: It is none.
    """
    file = descriptor_pb2.FileDescriptorProto(name="model_config.proto", package="inference", syntax="proto3")
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, is_repeated in fields:
            label = _FIELD.LABEL_REPEATED if is_repeated else _FIELD.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type = _FIELD.TYPE_ENUM if kind in _ENUMS else _FIELD.TYPE_MESSAGE
                added.type_name = f".inference.{kind}"
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))
    return text_format.Parse(text, kind())


@pytest.mark.parametrize("name", NAMES)
def test_the_server_reads_names_types_and_shapes(name: ModelName) -> None:
    check(parsed(triton_config(NETWORKS[name](), 3)), name)


@pytest.mark.parametrize("name", NAMES)
def test_tritons_own_messages_read_it_too(name: ModelName) -> None:
    messages = pytest.importorskip(
        "tritonclient.grpc.model_config_pb2", reason="needs `pip install tritonclient[grpc]`"
    )
    check(text_format.Parse(triton_config(NETWORKS[name](), 3), messages.ModelConfig()), name)


def test_a_mistake_is_found() -> None:
    with pytest.raises(text_format.ParseError):
        parsed(triton_config(NETWORKS["hlf"](), 3).replace("dims", "dimensions"))


def check(found: Message, name: ModelName) -> None:
    """What the server takes it for."""
    shapes = {"hlf": [14], "particles": [-1, 19], "num_particles": [1]}
    types = {"hlf": 11, "particles": 11, "num_particles": 9}
    assert found.backend == "onnxruntime"
    assert found.max_batch_size > 1
    assert [(each.name, each.data_type, list(each.dims)) for each in found.input] == [
        (column, types[column], shapes[column]) for column in NETWORKS[name].inputs
    ]
    # One number per event: without an axis besides that of the batch.
    assert [each.name for each in found.input if each.HasField("reshape")] == [
        column for column in NETWORKS[name].inputs if column == "num_particles"
    ]
    assert [(each.name, each.data_type, list(each.dims)) for each in found.output] == [(OUTPUT, 11, [3])]
    assert found.instance_group[0].kind == 2
