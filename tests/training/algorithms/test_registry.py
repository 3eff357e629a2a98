"""What every registered method keeps to, and how the config names them."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from typing import Literal

import numpy as np
import pytest
from pydantic import ValidationError
from simulated import VectorRow, settings

from training.algorithms.base import Algorithm
from training.algorithms.method import MethodSettings, Traits, algorithm
from training.algorithms.registry import METHODS, SlowMoSettings
from training.algorithms.wrapper import Wrapper
from training.loop.factories import make_algorithm
from training.settings import TrainSettings
from training.transports.transport import Transport


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that a test adds are gone after it."""
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS))


class ToySettings(MethodSettings):
    """Settings of a method for tests."""

    name: Literal["toy"]


@pytest.mark.usefixtures("registered")
def test_a_name_belongs_to_one_method() -> None:
    register = algorithm("toy", ToySettings, Traits())
    register(type("First", (), {}))
    with pytest.raises(
        ValueError, match=r"method 'toy' is .* twice: as .*First.* and as .*Second.*Rename one"
    ):
        register(type("Second", (), {}))
    with pytest.raises(ValueError, match=r"ToySettings needs the field `name: Literal\['other'\]`"):
        algorithm("other", ToySettings, Traits())


@pytest.mark.parametrize("name", METHODS)
def test_traits_agree_with_each_other_and_the_file_names_its_source(name: str) -> None:
    settings_of, traits, kind_name = METHODS[name]
    assert traits.title
    # Work units leave workers different numbers of steps, so only methods that meet never can use them.
    assert not traits.synchronous or traits.equal_steps
    assert not (traits.pairs and (traits.exact_average or traits.equal_steps))
    assert not traits.averages_models or traits.exact_average
    # The file of the method, by which a stage knows its code, and what its docstrings say.
    assert (
        kind_name.__module__
        == settings_of.__module__
        == f"training.algorithms.{name.replace('-', '_')}"
    )
    module = inspect.getmodule(kind_name)
    assert module is not None
    assert re.search(r"(19|20)\d\d", module.__doc__ or ""), (
        "the docstring of the module cites its source"
    )
    assert re.search(r"<-|=", kind_name.__doc__ or ""), (
        "the docstring of the class has the equation"
    )


def test_a_wrapper_passes_every_call_on() -> None:
    own_value = {
        name
        for name, value in vars(Algorithm).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert own_value - vars(Wrapper).keys() == {"has_gradient"}


def test_a_name_stands_for_the_method_with_its_defaults() -> None:
    for name in METHODS:
        read = TrainSettings.model_validate
        assert read({"algorithm": name, "optimizer": "sgd"}) == read(
            {"algorithm": {"name": name}, "optimizer": "sgd"}
        )
    assert TrainSettings().algorithm.name == "ar-sgd"
    with pytest.raises(ValidationError, match=r"'ad-psgd', .*'ar-sgd'"):
        TrainSettings.model_validate({"algorithm": "adpsgd"})


def test_only_what_can_change_the_result_counts() -> None:
    plain, named = (
        TrainSettings.model_validate({"algorithm": {"name": "ad-psgd"} | keys}).result_items()
        for keys in ({}, {"network": "ib0"})
    )
    assert plain == named
    assert plain["algorithm"] == {"name": "ad-psgd", "topology": "complete"}
    assert "workers" not in TrainSettings().result_items(exclude={"workers"})


def test_a_plan_is_made_without_libraries_that_load_slowly() -> None:
    code = "import sys, pipeline.commands.plan; sys.exit(bool({'torch', 'numba', 'scipy.special'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_slowmo_takes_the_traits_of_its_base_but_for_exact_averages() -> None:
    for exact in (True, False):
        selected = settings(
            algorithm="ad-psgd", workers=1, slowmo=SlowMoSettings(exact_average=exact)
        )
        created = make_algorithm(VectorRow(np.zeros(3)), selected, Transport())
        assert created.traits.pairs
        assert created.traits.equal_steps is exact
