"""Whatever is called, the function behind it says name, module and line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from hep_core import plugins
from hep_core.plugin_functions import callable_name, code_module, python_function


def pt_ratio(events: Any, power: float = 1.0) -> Any:
    return events**power


class Ratio:
    """An object that is called."""

    def __call__(self, events: Any) -> Any:
        return events

    def method(self, events: Any) -> Any:
        return events


class SquareRoot(Ratio):
    """Its class inherits what is called."""


class WithFunction:
    """It holds a function that it does not call."""

    func = pyfunc = py_func = staticmethod(pt_ratio)

    def __call__(self, events: Any) -> Any:
        return events


@wraps(pt_ratio)
def wrapped(*arguments: Any) -> Any:
    return pt_ratio(*arguments)


@pytest.mark.parametrize(
    ("options", "name", "function"),
    [
        (pt_ratio, "pt_ratio", pt_ratio),
        (partial(pt_ratio, power=2.0), "pt_ratio", pt_ratio),
        (partial(partial(pt_ratio), power=2.0), "pt_ratio", pt_ratio),
        (wrapped, "pt_ratio", pt_ratio),
        (numba.njit(pt_ratio), "pt_ratio", pt_ratio),
        (numba.vectorize(pt_ratio), "pt_ratio", pt_ratio),
        (np.vectorize(pt_ratio), "pt_ratio", pt_ratio),
        (Ratio().method, "method", Ratio.method),
        (partial(Ratio().method), "method", Ratio.method),
        (Ratio(), "Ratio", Ratio.__call__),
        (SquareRoot(), "SquareRoot", Ratio.__call__),
        (WithFunction(), "WithFunction", WithFunction.__call__),
    ],
    # Names that are the same in each process: those of `str` have addresses.
    ids=(
        "function",
        "partial",
        "partial of partial",
        "wrapped",
        "njit",
        "numba.vectorize",
        "numpy.vectorize",
        "method",
        "partial of method",
        "object",
        "object of a subclass",
        "object with a function of another",
    ),
)
def test_name_and_module_of_a_callable_are_those_of_its_function(
    options: Callable[..., Any], name: str, function: Callable[..., Any]
) -> None:
    assert python_function(options) is function
    assert callable_name(options) == name
    assert code_module(options) == __name__


@pytest.mark.parametrize(
    "options", [len, np.sqrt, partial(len), np.add.reduce], ids=["len", "sqrt", "partial", "reduce"]
)
def test_a_callable_without_a_python_function_is_refused(options: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="is no Python function; write `def` around it"):
        python_function(options)


def test_a_lambda_has_no_name_for_a_column() -> None:
    with pytest.raises(ValueError, match="'<lambda>' is no name"):
        callable_name(lambda events: events)


@pytest.mark.parametrize(
    "callable_text",
    ["partial(jets.callable_name, 1)", "np.vectorize(np.median)", "partial(np.median)"],
)
def test_a_callable_of_another_module_belongs_to_the_plugin_that_registers_it(
    tmp_path: Path, callable_text: str
) -> None:
    """`plugin.py` was in no fingerprint, or `plan` found no file of numpy's module."""
    lines = [
        "from functools import partial",
        "import numpy as np",
        "import hep_core.plugin_functions as jets",
    ]
    lines += [f"registered = {callable_text}", "jets.remember_plugin(registered)"]
    (tmp_path / "registers.py").write_text("\n".join(lines))

    module = plugins._import_file(tmp_path / "registers.py")

    del sys.modules[module.__name__]
    assert code_module(module.registered) == "plugin_registers"
