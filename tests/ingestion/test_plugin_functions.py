"""Whatever is called, the function behind it says name, module and line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numba
import numpy as np
import pytest

from ingestion.plugin_functions import function_behind, module_of, name_of


def pt_ratio(events: Any, power: float = 1.0) -> Any:
    return events**power


class Ratio:
    """An object that is called."""

    def __call__(self, events: Any) -> Any:
        return events

    def method(self, events: Any) -> Any:
        return events


@wraps(pt_ratio)
def wrapped(*arguments: Any) -> Any:
    return pt_ratio(*arguments)


@pytest.mark.parametrize(
    ("given", "name", "function"),
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
    ),
)
def test_the_function_behind_a_callable_says_name_and_module(
    given: Callable[..., Any], name: str, function: Callable[..., Any]
) -> None:
    assert function_behind(given) is function
    assert name_of(given) == name
    assert module_of(given) == __name__


@pytest.mark.parametrize("given", [len, np.sqrt, partial(len), np.add.reduce], ids=["len", "sqrt", "partial", "reduce"])
def test_a_callable_without_a_python_function_is_refused(given: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="is no Python function; write `def` around it"):
        function_behind(given)


def test_a_lambda_has_no_name_for_a_column() -> None:
    with pytest.raises(ValueError, match="'<lambda>' is no name"):
        name_of(lambda events: events)
