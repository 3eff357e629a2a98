"""What plugins register is callable in many ways: the Python function behind it says name, module and line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

#: Where callables keep the function that they call: `numba.njit`, `functools.partial`, a bound method, `np.vectorize`.
_INNER: Final = ("py_func", "func", "__func__", "pyfunc", "__wrapped__")
#: Number of callables around a function; more call each other in a circle.
_DEEPEST: Final = 20


def function_behind(given: Callable[..., Any]) -> FunctionType:
    """The Python function that a callable calls in the end.

    Raises:
        ValueError: There is none, as for functions of compiled libraries.

    Examples:
        >>> from functools import partial
        >>> def pt_ratio(events, power): ...
        >>> function_behind(partial(partial(pt_ratio, power=2))).__name__
        'pt_ratio'
        >>> function_behind(len)
        Traceback (most recent call last):
        ValueError: <built-in function len> is no Python function; write `def` around it
    """
    inner: Any = given
    for _ in range(_DEEPEST):
        if isinstance(inner, FunctionType):
            found = inspect.unwrap(inner)
            return found if isinstance(found, FunctionType) else inner
        names = [name for name in _INNER if callable(getattr(inner, name, None))]
        inner = getattr(inner, names[0]) if names else vars(type(inner)).get("__call__")
    raise ValueError(f"{given!r} is no Python function; write `def` around it")


def name_of(given: Callable[..., Any]) -> str:
    """Its name: that of the function behind a partial one, and of the class for an object that is called.

    Raises:
        ValueError: It has none that can be the name of a column, as `<lambda>`.
    """
    function = function_behind(given)
    name: str = getattr(given, "__name__", function.__name__)
    if name == "__call__":
        name = type(given).__name__
    if not name.isidentifier():
        raise ValueError(f"'{name}' is no name of letters, digits and _; write a function with `def`")
    return name


def module_of(given: Callable[..., Any]) -> str:
    """The module of the function behind it, by which a stage knows its code."""
    return function_behind(given).__module__
