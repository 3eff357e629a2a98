"""Names and modules of the callables that plugins register: partial functions, objects and more."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

import numpy as np

from hep_core import plugins

#: Types of callables, each with the attribute that holds the function which it calls.
_INNER: Final = ((partial, "func"), (np.vectorize, "pyfunc"), (MethodType, "__func__"))
#: Highest number of callables around a function; if there are more, they call each other in a
#: circle.
_MAX_DEPTH: Final = 20
_plugin_modules: dict[int, tuple[Callable[..., Any], str]] = {}
"""Callables by their address, each with the module of the plugin that registers it."""


def python_function(function: Callable[..., Any]) -> FunctionType:
    """The Python function that a callable calls in the end.

    It unwraps partial functions, methods, decorators, compiled functions of numba and objects with
    `__call__`, one after another.

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
    inner: Any = function
    for _ in range(_MAX_DEPTH):
        if isinstance(inner, FunctionType):
            unwrapped = inspect.unwrap(inner)
            return unwrapped if isinstance(unwrapped, FunctionType) else inner
        inner = _inner_callable(inner)
    raise ValueError(f"{function!r} is no Python function; write `def` around it")


def _inner_callable(function: Any) -> Any:
    """The callable that a callable calls, one level deeper; None if numba's has no inner one."""
    for callable_type, attribute in _INNER:
        if isinstance(function, callable_type):
            return getattr(function, attribute)
    if type(function).__module__.partition(".")[0] == "numba":
        return getattr(function, "py_func", getattr(function, "__wrapped__", None))
    # Of an object with `__call__` this is the method of its class, unless a decorator wraps it.
    call_method = getattr(type(function), "__call__", None)  # noqa: B004 - also of a base class
    return getattr(function, "__wrapped__", call_method)


def callable_name(function: Callable[..., Any]) -> str:
    """The name of a function, of the function in a partial one, or of the class of an object.

    Raises:
        ValueError: The name cannot be that of a column, as `<lambda>`.
    """
    inner = python_function(function)
    name: str = getattr(function, "__name__", inner.__name__)
    if name == "__call__":
        name = type(function).__name__
    if not name.isidentifier():
        raise ValueError(
            f"'{name}' is no name of letters, digits and _; write a function with `def`"
        )
    return name


def remember_plugin(function: Callable[..., Any]) -> None:
    """Remember which plugin registers a callable; its Python function may be of another module.

    Raises:
        ValueError: It calls no Python function.
    """
    python_function(function)
    if module := plugins.being_imported():
        _plugin_modules[id(function)] = function, module


def code_module(function: Callable[..., Any]) -> str:
    """The module whose code a stage depends on: of the plugin, else of the Python function.

    The modules that a plugin imports count with it.
    """
    if id(function) in _plugin_modules:
        _, module = _plugin_modules[id(function)]
        return module
    return python_function(function).__module__
