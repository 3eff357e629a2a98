"""What plugins register is callable in many ways: the Python function behind it says name, module and line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

import numpy as np

from hep_core import plugins

#: Where callables keep the function that they call, by their type.
_INNER: Final = ((partial, "func"), (np.vectorize, "pyfunc"), (MethodType, "__func__"))
#: Number of callables around a function; more call each other in a circle.
_DEEPEST: Final = 20
_registered: dict[int, tuple[Callable[..., Any], str]] = {}
"""Callables by their address, and the modules of the plugins that register them."""


def python_function(given: Callable[..., Any]) -> FunctionType:
    """The Python function that a callable calls in the end.

    Raises:
        ValueError: There is none, as for functions of compiled libraries.

    Examples:
        >>> from functools import partial
        >>> def pt_ratio(events, power): ...
        >>> python_function(partial(partial(pt_ratio, power=2))).__name__
        'pt_ratio'
        >>> python_function(len)
        Traceback (most recent call last):
        ValueError: <built-in function len> is no Python function; write `def` around it
    """
    inner: Any = given
    for _ in range(_DEEPEST):
        if isinstance(inner, FunctionType):
            found = inspect.unwrap(inner)
            return found if isinstance(found, FunctionType) else inner
        inner = _called_by(inner)
    raise ValueError(f"{given!r} is no Python function; write `def` around it")


def _called_by(given: Any) -> Any:
    for kind, name in _INNER:
        if isinstance(given, kind):
            return getattr(given, name)
    if type(given).__module__.partition(".")[0] == "numba":
        return getattr(given, "py_func", getattr(given, "__wrapped__", None))
    called = getattr(type(given), "__call__", None)  # noqa: B004 - the function, also of a base class
    return getattr(given, "__wrapped__", called)


def callable_name(given: Callable[..., Any]) -> str:
    """Its name: that of the function behind a partial one, and of the class for an object that is called.

    Raises:
        ValueError: It has none that can be the name of a column, as `<lambda>`.
    """
    function = python_function(given)
    name: str = getattr(given, "__name__", function.__name__)
    if name == "__call__":
        name = type(given).__name__
    if not name.isidentifier():
        raise ValueError(
            f"'{name}' is no name of letters, digits and _; write a function with `def`"
        )
    return name


def remember_plugin(given: Callable[..., Any]) -> None:
    """Remember the plugin that registers a callable, since the function behind it may be of another module.

    Raises:
        ValueError: It calls no Python function.
    """
    python_function(given)
    if plugin := plugins.being_imported():
        _registered[id(given)] = given, plugin


def code_module(given: Callable[..., Any]) -> str:
    """The module by which a stage knows its code: of the plugin that registers it, else of the function behind it.

    What a plugin imports counts with it.
    """
    _, plugin = _registered.get(id(given), (given, None))
    return plugin or python_function(given).__module__
