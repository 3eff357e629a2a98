"""A perceptron as firmware for FPGAs by hls4ml (the extra `hls`), simulated bit by bit.

An FPGA is a chip with a programmable circuit, which computes with fixed-point numbers. The firmware
takes scaled features, since a fixed-point number that holds 1,000 GeV resolves no isolation.
`scaling.onnx` makes them of raw features. hls4ml gives no latency before the synthesis of the
circuit; da4ml estimates it.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.errors import FirmwareError
from models.export.onnx_export import single_precision, write_onnx
from models.networks.classifier import Classifier, nan_where_invalid

#: The compiler for which hls4ml writes the firmware; Vitis HLS makes a circuit of it.
BACKEND: Final = "Vitis"
#: Additions one after the other within a clock, and length of a clock [ns], as da4ml itself
#: assumes.
_ADDITIONS_PER_CLOCK: Final = 5
_CLOCK: Final = 5.0
Floats = NDArray[np.float32]


def is_convertible(model: Classifier) -> bool:
    """Whether a network is a perceptron on the high-level features alone."""
    form = model.standard_form()
    return form is not None and form.encoder is None and form.scaling is not None


def export_firmware(
    model: Classifier, calibration: Floats, events: Floats, folder: Path, *, bits: Sequence[int]
) -> list[dict[str, float]]:
    """Write firmware of several widths, compile its simulation, and compare that with the network.

    Writes `scaling.onnx`, from raw features `hlf` (batch, NUM_HLF) to `scaled`, and for each width
    a project of hls4ml in the folder `<bits>-bits`. All numbers between the layers, and all
    weights, have that many bits. As many of them are before the point as the largest number of the
    layer needs, so that nothing overflows. The firmware returns logits.

    Args:
        model: A network that is `is_convertible`; it stays unchanged.
        calibration: (num_events, NUM_HLF) raw features of training events, for the ranges of the
            layers.
        events: (num_events, NUM_HLF) raw features of the events of the comparison.
        folder: An empty folder.
        bits: Widths.

    Returns:
        For each width its `bits`, the `largest_difference` of a probability, and `same_class`, the
        share of events with the same most probable class. `latency_ns` [ns] and `lookup_tables` are
        estimates for a circuit of adders from the scaled features to the logits.

    Raises:
        FirmwareError: A simulation cannot be compiled.
    """
    form = single_precision(model).standard_form()
    if form is None or form.scaling is None:
        raise ValueError(f"{type(model).__name__} is no perceptron; ask `is_convertible` first")
    layers = nn.Sequential(*form.layers)
    frame = form.frame or nn.Identity()
    scaling = _Scaling(nn.Sequential(frame, form.scaling))
    # Two events, since exporters treat a length of 1 as a constant.
    example = torch.zeros(2, calibration.shape[1])
    axes = {name: {0: "batch"} for name in ("hlf", "scaled")}
    write_onnx(scaling, {"hlf": example}, axes, {}, folder / "scaling.onnx", output="scaled")
    with torch.inference_mode():
        # Largest numbers of input and layers on the training events: they set the points.
        ranges = _largest_numbers(layers, scaling(torch.tensor(calibration)))
        scaled = scaling(torch.tensor(events))
        expected = torch.softmax(layers(scaled), dim=1).numpy()
    comparisons: list[dict[str, float]] = []
    for width in bits:
        logits = _simulate(layers, ranges, scaled.numpy(), folder / f"{width}-bits", width)
        comparison = _compared_with_network(logits, expected)
        # The estimate adds latency and size of the circuit.
        estimate = _estimate(layers, ranges, width)
        comparisons.append({"bits": width} | comparison | estimate)
    return comparisons


def _compared_with_network(logits: Floats, expected: Floats) -> dict[str, float]:
    """Compare the logits of a firmware with the probabilities of the network.

    Both are (num_events, num_classes).
    """
    probabilities = torch.softmax(torch.from_numpy(logits), dim=1).numpy()
    differences = np.abs(probabilities - expected)
    is_same = probabilities.argmax(axis=1) == expected.argmax(axis=1)
    return {
        "largest_difference": float(differences.max()),
        "same_class": float(is_same.mean()),
    }


class _Scaling(nn.Module):
    """Scales raw features; all are NaN for an event with a number that is not finite."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, hlf: Tensor) -> Tensor:
        """Scale raw features (B, NUM_HLF)."""
        scaled: Tensor = self.layers(hlf) + nan_where_invalid(hlf=hlf)
        return scaled


def _largest_numbers(layers: nn.Sequential, scaled: Tensor) -> list[dict[str, float]]:
    """Find the largest absolute numbers of the input and of each layer.

    The first entry is that of the input, `result`. Each layer has one more, with its `result`, and
    its `weight` and `bias` if it has them.
    """
    largest = [{"result": float(scaled.abs().max())}]
    for layer in layers:
        scaled = layer(scaled)
        tensors = {"result": scaled, **dict(layer.named_parameters())}
        largest_of_layer = {}
        for name, tensor in tensors.items():
            largest_of_layer[name] = float(tensor.abs().max())
        largest.append(largest_of_layer)
    return largest


class _FixedPoint(NamedTuple):
    """A format of rounded, saturating, signed numbers with a point after some bits.

    Numbers are multiples of 2^-fraction_bits; those beyond the range become its end.
    """

    bits: int
    """Number of all bits."""
    integer_bits: int
    """Bits before the point, with that of the sign."""

    @classmethod
    def holding(cls, largest: float, bits: int) -> Self:
        """Choose the format of some bits in which the largest number just fits."""
        if largest <= 0:
            return cls(bits, 1)
        exponent = math.floor(math.log2(largest))
        # A size below 2^n needs n bits before the point, and one for the sign.
        integer_bits = max(1, exponent + 2)
        return cls(bits, integer_bits)

    @property
    def fraction_bits(self) -> int:
        """Bits behind the point."""
        return self.bits - self.integer_bits

    @property
    def hls4ml_type(self) -> str:
        """The name of this format in hls4ml.

        Examples:
            >>> _FixedPoint.holding(5.5, 16).hls4ml_type
            'fixed<16,4,RND,SAT>'
        """
        return f"fixed<{self.bits},{self.integer_bits},RND,SAT>"

    def round(self, values: Floats) -> NDArray[np.float64]:
        """Round values to the nearest numbers of this format, ties up; the range limits them."""
        step = 2.0**-self.fraction_bits
        most = 2 ** (self.bits - 1)
        multiples = np.floor(values.astype(np.float64) / step + 0.5)
        return np.clip(multiples, -most, most - 1) * step


def _estimate(
    layers: nn.Sequential, ranges: list[dict[str, float]], width: int
) -> dict[str, float]:
    """Estimate latency [ns] and number of look-up tables of a circuit with the same numbers.

    The circuit only adds: a product with a fixed weight is a sum of shifted numbers, and da4ml
    finds a circuit with few additions. The layers run on symbols instead of numbers, rounded after
    each layer as in the firmware.
    """
    from da4ml.trace import FixedVariableArray, comb_trace  # noqa: PLC0415 - an optional package

    num_inputs = next(layers.parameters()).shape[1]
    ones = np.ones(num_inputs, dtype=np.int64)
    numbers = _FixedPoint.holding(ranges[0]["result"], width)
    # da4ml counts the bit of the sign apart: so there is one integer bit less.
    integer_bits = ones * (numbers.integer_bits - 1)
    fraction_bits = ones * numbers.fraction_bits
    inputs = FixedVariableArray.from_kif(ones, integer_bits, fraction_bits)
    values = inputs
    for layer, largest in zip(layers, ranges[1:], strict=True):
        if isinstance(layer, nn.Linear):
            weight_numbers = _FixedPoint.holding(largest["weight"], width)
            bias_numbers = _FixedPoint.holding(largest["bias"], width)
            weight = weight_numbers.round(layer.weight.detach().numpy())
            bias = bias_numbers.round(layer.bias.detach().numpy())
            values = values @ weight.T + bias
        else:
            values = values.relu()
        numbers = _FixedPoint.holding(largest["result"], width)
        values = values.quantize(
            k=1,
            i=numbers.integer_bits - 1,
            f=numbers.fraction_bits,
            overflow_mode="SAT",
            round_mode="RND",
        )
    # The circuit holds all additions from the inputs to the logits.
    circuit = comb_trace(inputs, values)
    num_additions = max(circuit.latency)
    num_clocks = math.ceil(num_additions / _ADDITIONS_PER_CLOCK)
    return {"latency_ns": num_clocks * _CLOCK, "lookup_tables": math.ceil(circuit.cost)}


def _simulate(
    layers: nn.Sequential, ranges: list[dict[str, float]], scaled: Floats, folder: Path, width: int
) -> Floats:
    """Write and compile the firmware of one width, and return its simulated logits.

    `ranges` are those of `_largest_numbers`, `scaled` (num_events, NUM_HLF) scaled features. The
    project stays in the folder, without the compiled library. Logits are (num_events, num_classes).
    """
    import hls4ml  # noqa: PLC0415 - an optional package

    input_shape = (scaled.shape[1],)
    default_precision = _FixedPoint.holding(1.0, width).hls4ml_type
    # hls4ml prints about each layer.
    with contextlib.redirect_stdout(io.StringIO()):
        options = hls4ml.utils.config_from_pytorch_model(
            layers,
            input_shape,
            granularity="name",
            backend=BACKEND,
            default_precision=default_precision,
        )
        # There is one entry for the input and for each layer, in order; each number gets its own
        # format.
        for layer, largest in zip(options["LayerName"].values(), ranges, strict=True):
            for name, number in largest.items():
                numbers = _FixedPoint.holding(number, width)
                layer["Precision"][name] = numbers.hls4ml_type
        firmware: Any = hls4ml.converters.convert_from_pytorch_model(
            layers,
            hls_config=options,
            output_dir=str(folder),
            backend=BACKEND,
            project_name="network",
        )
        try:
            firmware.compile()
        except Exception as cause:  # hls4ml's errors have no common class.
            raise FirmwareError(
                f"the simulation in {folder} was not compiled ({cause}). Install g++."
            ) from cause
    predicted = firmware.predict(np.ascontiguousarray(scaled))
    logits = np.asarray(predicted, dtype=np.float32)
    # The compiled library only serves the simulation.
    for library in folder.glob("firmware/*.so"):
        library.unlink()
    return logits.reshape(len(scaled), -1)
