"""Every network in every exported form, run as others run it: the answer of torch for any input, or
an error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
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
        feeds = {each.name: numpy.zeros(shapes.get(each.name, events), numpy.float32) for each in session.get_inputs()}
        if "num_particles" in feeds:
            feeds["num_particles"] = feeds["num_particles"].astype(numpy.int64)
        print(*session.run(None, feeds)[0].shape)
"""


class Forms(NamedTuple):
    """A network, and its exported forms by file name."""

    torch: Form
    files: Mapping[str, Form]
    onnx: bytes


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ModelName], Forms]:
    """Made once for each network: an export takes a second."""

    @cache
    def made(name: ModelName) -> Forms:
        spec, folder = small_spec(name), tmp_path_factory.mktemp(name)
        spec = spec._replace(scalers={column: ROBUST_SCALERS[column] for column in spec.scalers})
        model = small_network(spec, dtype=torch.float32).eval()
        export_onnx(model, spec, folder / "model.onnx")
        files = {"model.onnx": _session(folder / "model.onnx")}
        if model.standard_form() is not None:
            export_one_event(model, spec, folder / "one_event.onnx")
            first = _session(folder / "one_event.onnx")
            files["one_event.onnx"] = lambda events: np.concatenate(
                [first(event) for event in _one_by_one(events)]
            )
        network = ProbabilityNetwork(model)
        return Forms(
            lambda events: network(*_tensors(events, model.inputs)).detach().numpy(),
            files,
            (folder / "model.onnx").read_bytes(),
        )

    return made


def _session(path: Path) -> Form:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [model_input.name for model_input in session.get_inputs()]
    return lambda events: np.asarray(session.run(None, {name: events[name] for name in names})[0])


def _tensors(events: Events, names: tuple[str, ...]) -> list[torch.Tensor]:
    return [torch.from_numpy(events[name].copy()) for name in names]


def _one_by_one(events: Events) -> list[Events]:
    """Each event as `one_event.onnx` takes it."""
    results = []
    for event, count in enumerate(events["num_particles"]):
        particles = np.zeros((1, MAX_PARTICLES, NUM_PARTICLE_FEATURES), np.float32)
        particles[0, :count] = events["particles"][event, :count]
        results.append({"hlf": events["hlf"][event : event + 1], "particles": particles})
    return results


def made_events(lengths: list[int], seed: int = 1) -> Events:
    """Events with particles of one kind each."""
    events = {
        name: values.numpy()
        for name, values in random_events(lengths, dtype=torch.float32, seed=seed).items()
    }
    particles, kinds = events["particles"], _PARTICLE_TYPES.stop - _PARTICLE_TYPES.start
    places = np.arange(particles.shape[1]) % kinds
    particles[..., _PARTICLE_TYPES] = np.eye(kinds)[places]
    return events


@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_is_not_finite_gives_no_probabilities_in_every_form(
    forms: Callable[[ModelName], Forms], name: ModelName
) -> None:
    """NaN in one particle was dropped by onnxruntime's GRU, and infinite numbers were cut off to plausible ones."""
    created = forms(name)

    @settings(max_examples=25, deadline=None, database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
        events, seen = made_events(lengths, seed=data.draw(st.integers(0, 9))), set()
        for _ in range(data.draw(st.integers(0, 3))):
            event = data.draw(st.integers(0, len(lengths) - 1))
            value = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 3e38, -3e38]))
            column = data.draw(st.sampled_from(["hlf", "particles"]))
            row = data.draw(st.integers(0, max(1, *lengths) - 1)) if column == "particles" else None
            position = data.draw(st.integers(0, events[column].shape[-1] - 1))
            events[column][(event, position) if row is None else (event, row, position)] = value
            # Of numbers that are finite but absurd, torch decides.
            if column in NETWORKS[name].inputs and (row is None or row < lengths[event]):
                seen.add((event, bool(np.isfinite(value))))
        expected = created.torch(events)
        assert all(np.isnan(expected[event]).all() for event, is_finite in seen if not is_finite)
        assert all(
            np.isfinite(expected[event]).all()
            for event in set(range(len(lengths))) - {each for each, _ in seen}
        )
        for file, form in created.files.items():
            # A sum with a flag of 3e38 is no number of `one_event.onnx`, which takes the padding
            # from the flags.
            retained = [
                each
                for each in range(len(lengths))
                if file != "one_event.onnx" or (each, True) not in seen
            ]
            np.testing.assert_allclose(
                form(events)[retained], expected[retained], rtol=0, atol=1e-5, err_msg=file
            )

    check()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("change", "answers"),
    [
        pytest.param({"num_particles": np.array([0, 3])}, True, id="an event without particles"),
        pytest.param({"num_particles": np.array([1, 1])}, True, id="one particle"),
        pytest.param({"num_particles": np.array([-1, 3])}, True, id="a negative count"),
        pytest.param({"num_particles": np.array([9, 3])}, False, id="more particles than rows"),
        pytest.param({"num_particles": np.array([3])}, False, id="one count for two events"),
        pytest.param(
            {"num_particles": np.array([3, 2, 1])}, False, id="three counts for two events"
        ),
        pytest.param({"num_particles": np.array([5.0, 3.0])}, False, id="counts as floats"),
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
    forms: Callable[[ModelName], Forms], name: ModelName, change: Events, answers: bool
) -> None:
    created, events = forms(name), made_events([5, 3]) | change
    try:
        expected = created.torch(events)
    except Exception:  # noqa: BLE001 - any is an answer
        expected = None
    assert not answers or expected is not None
    try:
        actual = created.files["model.onnx"](events)
    except Exception:  # noqa: BLE001 - likewise
        assert not answers
        return
    assert expected is not None, f"the file gives {actual} where torch fails"
    np.testing.assert_allclose(actual, expected, rtol=0, atol=PARITY_TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_more_particles_than_any_event_of_the_training_are_as_in_torch(
    forms: Callable[[ModelName], Forms], name: ModelName
) -> None:
    created, events = forms(name), made_events([MAX_PARTICLES + 99, MAX_PARTICLES])
    np.testing.assert_allclose(
        created.files["model.onnx"](events), created.torch(events), rtol=0, atol=PARITY_TOLERANCE
    )


def test_an_empty_request_ended_the_process(
    forms: Callable[[ModelName], Forms], tmp_path: Path
) -> None:
    """In a process of its own, since onnxruntime ended it."""
    for name in NAMES:
        (tmp_path / name).write_bytes(forms(name).onnx)
    completed = subprocess.run(
        [sys.executable, "-c", WITHOUT_EVENTS, *NAMES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (completed.returncode, completed.stdout.splitlines()) == (
        0,
        ["0 3", "0 3", "2 3"] * len(NAMES),
    ), completed.stderr
    for name in NAMES:
        none = {column: values[:0] for column, values in made_events([3]).items()}
        assert forms(name).torch(none).shape == (0, 3)
