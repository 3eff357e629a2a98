"""Every network in every exported form: the answer of torch for any input, or an error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import NAMES, ROBUST_SCALERS, random_events, small_network, small_spec

from features.columns import MAX_PARTICLES, NUM_PARTICLE_FEATURES
from models.export.one_event_network import _PARTICLE_TYPES
from models.export.onnx_export import export_one_event, export_onnx
from models.export.parity import PARITY_TOLERANCE
from models.networks.classifier import ProbabilityNetwork
from models.networks.registry import NETWORKS, ModelName

pytestmark = pytest.mark.slow
Events = dict[str, np.ndarray[Any, Any]]
Form = Callable[[Events], np.ndarray[Any, Any]]

#: Runs files on no events and on events without rows; prints the shapes. An error of the runtime is
#: an exception.
WITHOUT_EVENTS = """
import sys, numpy, onnxruntime
for path in sys.argv[1:]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for events, rows in (0, 5), (0, 0), (2, 0):
        shapes = {"hlf": (events, 14), "particles": (events, rows, 19)}
        feeds = {x.name: numpy.zeros(shapes.get(x.name, events), numpy.float32) for x in session.get_inputs()}
        if "num_particles" in feeds:
            feeds["num_particles"] = feeds["num_particles"].astype(numpy.int64)
        print(*session.run(None, feeds)[0].shape)
"""


class Forms(NamedTuple):
    """A network in torch, its exported forms by file name, and the bytes of `model.onnx`."""

    torch: Form
    files: Mapping[str, Form]
    onnx: bytes


MakeForms = Callable[[ModelName], Forms]


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> MakeForms:
    """Exports a network; each only once, since an export takes a second."""

    @cache
    def make_forms(name: ModelName) -> Forms:
        folder = tmp_path_factory.mktemp(name)
        spec = small_spec(name)
        spec = spec._replace(scalers={column: ROBUST_SCALERS[column] for column in spec.scalers})
        model = small_network(spec, dtype=torch.float32).eval()
        export_onnx(model, spec, folder / "model.onnx")
        files = {"model.onnx": _load(folder / "model.onnx")}
        if model.standard_form() is not None:
            export_one_event(model, spec, folder / "one_event.onnx")
            files["one_event.onnx"] = _event_by_event(_load(folder / "one_event.onnx"))
        network = ProbabilityNetwork(model)

        def run_torch(events: Events) -> np.ndarray[Any, Any]:
            inputs = [torch.from_numpy(events[column].copy()) for column in model.inputs]
            return network(*inputs).detach().numpy()

        return Forms(run_torch, files, (folder / "model.onnx").read_bytes())

    return make_forms


def _load(path: Path) -> Form:
    """The exported network of a file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [model_input.name for model_input in session.get_inputs()]

    def run_session(events: Events) -> np.ndarray[Any, Any]:
        (probabilities,) = session.run(None, {name: events[name] for name in names})
        return np.asarray(probabilities)

    return run_session


def _event_by_event(form: Form) -> Form:
    """A form that runs a network of one event on several events."""

    def run_events(events: Events) -> np.ndarray[Any, Any]:
        probabilities = []
        for event, length in enumerate(events["num_particles"]):
            particles = np.zeros((1, MAX_PARTICLES, NUM_PARTICLE_FEATURES), np.float32)
            particles[0, :length] = events["particles"][event, :length]
            hlf = events["hlf"][event : event + 1]
            probabilities.append(form({"hlf": hlf, "particles": particles}))
        return np.concatenate(probabilities)

    return run_events


def events_of_lengths(lengths: list[int], seed: int = 1) -> Events:
    """Random events; each particle is of one type."""
    tensors = random_events(lengths, dtype=torch.float32, seed=seed)
    events = {name: values.numpy() for name, values in tensors.items()}
    particles = events["particles"]
    num_types = _PARTICLE_TYPES.stop - _PARTICLE_TYPES.start
    types = np.arange(particles.shape[1]) % num_types
    particles[..., _PARTICLE_TYPES] = np.eye(num_types)[types]
    return events


@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_is_not_finite_gives_no_probabilities_in_every_form(
    forms: MakeForms, name: ModelName
) -> None:
    network = forms(name)

    @settings(max_examples=25, deadline=None, database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
        events = events_of_lengths(lengths, seed=data.draw(st.integers(0, 9)))
        is_spoiled = np.zeros(len(lengths), np.bool_)
        is_absurd = np.zeros(len(lengths), np.bool_)
        for _ in range(data.draw(st.integers(0, 3))):
            event = data.draw(st.integers(0, len(lengths) - 1))
            value = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 3e38, -3e38]))
            column = data.draw(st.sampled_from(["hlf", "particles"]))
            numbers, is_input = events[column][event], column in NETWORKS[name].inputs
            if column == "particles":
                row = data.draw(st.integers(0, max(1, *lengths) - 1))
                numbers, is_input = numbers[row], is_input and row < lengths[event]
            numbers[data.draw(st.integers(0, len(numbers) - 1))] = value
            if is_input:
                is_spoiled[event] |= not np.isfinite(value)
                is_absurd[event] |= np.isfinite(value)

        expected = network.torch(events)

        assert np.isnan(expected[is_spoiled]).all()
        # Torch decides about numbers that are finite but absurd.
        assert np.isfinite(expected[~is_spoiled & ~is_absurd]).all()
        for file, form in network.files.items():
            is_compared = np.ones(len(lengths), np.bool_)
            if file == "one_event.onnx":
                # It reads the padding from the flags, and a sum with a flag of 3e38 is no number.
                is_compared = ~is_absurd
            np.testing.assert_allclose(
                form(events)[is_compared], expected[is_compared], rtol=0, atol=1e-5, err_msg=file
            )

    check()


def counts(*num_particles: float) -> Events:
    return {"num_particles": np.array(num_particles)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("change", "answers"),
    [
        pytest.param(counts(0, 3), True, id="an event without particles"),
        pytest.param(counts(1, 1), True, id="one particle"),
        pytest.param(counts(-1, 3), True, id="a negative count"),
        pytest.param(counts(9, 3), False, id="more particles than rows"),
        pytest.param(counts(3), False, id="one count for two events"),
        pytest.param(counts(3, 2, 1), False, id="three counts for two events"),
        pytest.param(counts(5.0, 3.0), False, id="counts as floats"),
        pytest.param(
            {"particles": np.zeros((2, 5, 18), np.float32)}, False, id="18 features of particles"
        ),
        pytest.param({"particles": np.zeros((2, 5, 19))}, False, id="double precision"),
        pytest.param({"particles": np.zeros((2, 5, 19), np.float16)}, False, id="half precision"),
        pytest.param({"particles": np.zeros((2, 95), np.float32)}, False, id="flat lists"),
        pytest.param({"hlf": np.zeros((2, 13), np.float32)}, False, id="13 features"),
        pytest.param({"hlf": np.zeros((2, 14))}, False, id="features in double precision"),
        pytest.param({"hlf": np.zeros((3, 14), np.float32)}, False, id="three events beside two"),
    ],
)
def test_any_other_input_gives_the_answer_of_torch_or_an_error(
    forms: MakeForms, name: ModelName, change: Events, answers: bool
) -> None:
    """Where `answers`, both must give probabilities."""
    network = forms(name)
    events = events_of_lengths([5, 3]) | change
    expected = probabilities = None

    # Any error is an answer.
    with suppress(Exception):
        expected = network.torch(events)
    with suppress(Exception):
        probabilities = network.files["model.onnx"](events)

    if answers:
        assert expected is not None
        assert probabilities is not None
    if probabilities is not None:
        assert expected is not None, f"the file gives {probabilities} where torch fails"
        np.testing.assert_allclose(probabilities, expected, rtol=0, atol=PARITY_TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_more_particles_than_any_event_of_the_training_are_as_in_torch(
    forms: MakeForms, name: ModelName
) -> None:
    network = forms(name)
    events = events_of_lengths([MAX_PARTICLES + 99, MAX_PARTICLES])

    probabilities = network.files["model.onnx"](events)

    expected = network.torch(events)
    np.testing.assert_allclose(probabilities, expected, rtol=0, atol=PARITY_TOLERANCE)


def test_an_empty_request_gives_no_probabilities(forms: MakeForms, tmp_path: Path) -> None:
    """In a process of its own, since an error of onnxruntime may end it."""
    for name in NAMES:
        (tmp_path / name).write_bytes(forms(name).onnx)

    completed = subprocess.run(
        [sys.executable, "-c", WITHOUT_EVENTS, *NAMES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines() == ["0 3", "0 3", "2 3"] * len(NAMES)
    for name in NAMES:
        no_events = {column: values[:0] for column, values in events_of_lengths([3]).items()}
        assert forms(name).torch(no_events).shape == (0, 3)
