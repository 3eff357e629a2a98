"""The rules that hold for every registered method, and the names of methods in the config."""

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
    async def step() -> None: ...

    register = algorithm("toy", ToySettings, Traits())
    register(type("First", (), {"step": step}))
    with pytest.raises(
        ValueError, match=r"method 'toy' is .* twice: as .*First.* and as .*Second.*Rename one"
    ):
        register(type("Second", (), {"step": step}))
    with pytest.raises(ValueError, match=r"ToySettings needs the field `name: Literal\['other'\]`"):
        algorithm("other", ToySettings, Traits())


@pytest.mark.parametrize("name", METHODS)
def test_traits_agree_with_each_other(name: str) -> None:
    traits = METHODS[name].traits

    assert traits.title
    # Work units leave workers different numbers of steps, so only methods that never synchronise
    # can use them.
    assert not traits.synchronous or traits.equal_steps
    assert not (traits.pairs and (traits.exact_average or traits.equal_steps))
    assert not traits.averages_models or traits.exact_average


@pytest.mark.parametrize("name", METHODS)
def test_the_file_of_a_method_has_its_name_its_source_and_its_equation(name: str) -> None:
    method = METHODS[name]

    assert method.algorithm.__module__ == f"training.algorithms.{name.replace('-', '_')}"
    assert method.settings.__module__ == method.algorithm.__module__
    module = inspect.getmodule(method.algorithm)
    assert module is not None
    assert re.search(r"(19|20)\d\d", module.__doc__ or "")
    assert re.search(r"<-|=", method.algorithm.__doc__ or "")


def test_a_wrapper_passes_every_call_on() -> None:
    methods = {name for name, member in vars(Algorithm).items() if inspect.isfunction(member)}
    public_methods = {name for name in methods if not name.startswith("_")}

    not_passed_on = public_methods - vars(Wrapper).keys()
    assert not_passed_on == {"has_gradient"}


@pytest.mark.parametrize("name", METHODS)
def test_a_name_stands_for_the_method_with_its_defaults(name: str) -> None:
    by_name = TrainSettings.model_validate({"algorithm": name, "optimizer": "sgd"})
    by_section = TrainSettings.model_validate({"algorithm": {"name": name}, "optimizer": "sgd"})

    assert by_name == by_section


def test_an_unknown_method_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(ValidationError, match=r"'ad-psgd', .*'ar-sgd'"):
        TrainSettings.model_validate({"algorithm": "adpsgd"})


def test_only_keys_that_can_change_the_result_count() -> None:
    settings = TrainSettings.model_validate({"algorithm": {"name": "ad-psgd", "network": "ib0"}})

    items = settings.result_items(exclude={"workers"})

    assert items["algorithm"] == {"name": "ad-psgd", "topology": "complete"}
    assert "workers" not in items


def test_a_plan_is_made_without_libraries_that_load_slowly() -> None:
    slow_modules = {"torch", "numba", "scipy.special"}
    code = f"import sys, pipeline.commands.plan; assert not {slow_modules} & set(sys.modules)"

    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("exact", [True, False])
def test_slowmo_has_the_traits_of_its_base_but_for_exact_averages(exact: bool) -> None:
    slowmo = SlowMoSettings(exact_average=exact)
    wrapped_settings = settings(algorithm="ad-psgd", workers=1, slowmo=slowmo)

    algorithm = make_algorithm(VectorRow(np.zeros(3)), wrapped_settings, Transport())

    assert algorithm.traits.pairs
    assert algorithm.traits.equal_steps is exact
