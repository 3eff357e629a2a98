"""Registers the functions of the high-level features by name, built-in and from plugins.

It imports no kernels, so that the command line starts quickly.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from features.columns import Binning, Feature, RotationBehaviour, add_high_level
from hep_core.plugin_functions import callable_name, python_function, remember_plugin
from ingestion.schema import WEIGHT_PREFIX


class FeatureFunction(NamedTuple):
    """How a high-level feature is computed."""

    function: Callable[[Any], Any]
    """Takes `features.high_level.SelectedEvents`, returns one number per event."""
    is_plugin: bool = False
    needs: tuple[str, ...] = ()
    """Branches that it reads."""

    @property
    def location(self) -> str:
        """File and line of the function."""
        code = python_function(self.function).__code__
        return f"{code.co_filename}:{code.co_firstlineno}"


#: All high-level features by name.
FUNCTIONS: Final[dict[str, FeatureFunction]] = {}
F = TypeVar("F", bound=Callable[[Any], Any])


def high_level_feature(
    *,
    unit: str,
    meaning: str,
    bins: tuple[int, float, float] | None = None,
    log_above: float = 0.0,
    rotation: RotationBehaviour = RotationBehaviour.NONE,
    needs: Sequence[str] = (),
    label: str = "",
) -> Callable[[F], F]:
    """Register a function of a plugin as the high-level feature of its name (a decorator).

    The feature becomes the last column of the table. The function takes `SelectedEvents` and
    returns one finite number per event, independent of the other events.

    Args:
        unit: Physical unit; `1` for pure numbers.
        meaning: A few words.
        bins: Number, lower and upper edge of the bins of its histogram; None for no histogram.
        log_above: See `features.columns.Feature`.
        rotation: See `features.columns.Feature`.
        needs: Branches that it reads from `SelectedEvents.records`; the config names them in
            `ingest.pass_through`.
        label: Text on axes, without the unit, with formulas as in `$p_T / H_T$`; empty for the
            name.

    Raises:
        TypeError: `needs` is a text.
        ValueError: There is such a column, or it has no unit, meaning or name, or an argument or
            the signature of the function is not as above.
    """

    def register(function: F) -> F:
        """Add the feature of a function to the tables; returns the function unchanged."""
        name = callable_name(function)
        if name.startswith(WEIGHT_PREFIX):
            raise ValueError(
                f"'{name}': columns that begin with '{WEIGHT_PREFIX}' are those of ingest.weights, "
                f"which are scaled as weights; give the feature another name"
            )
        _require_one_argument(name, function)
        if isinstance(needs, str):
            raise TypeError(f"'{name}' needs a list of branches: needs=[{needs!r}]")
        if not 0 <= log_above < math.inf:
            raise ValueError(f"log_above of '{name}' is a size: a number above 0, or 0")
        binning = None if bins is None else _require_binning(name, bins)
        feature = Feature(
            name, unit, meaning, binning, log_above=log_above, rotation=rotation, label=label
        )
        add_high_level(feature)
        remember_plugin(function)
        FUNCTIONS[name] = FeatureFunction(function, is_plugin=True, needs=tuple(needs))
        return function

    return register


def _require_binning(name: str, bins: Any) -> Binning:
    """The bins of a feature.

    Raises:
        ValueError: They are not a whole number above 0 and two finite edges in ascending order.
    """
    message = f"the bins of '{name}' are a number above 0, a lower and a higher edge: (20, 0, 1)"
    try:
        num_bins, low, high = bins
        is_valid = num_bins == int(num_bins) >= 1 and -math.inf < low < high < math.inf
    except (TypeError, ValueError, OverflowError) as cause:
        raise ValueError(message) from cause
    if not is_valid:
        raise ValueError(message)
    return Binning(int(num_bins), low, high)


def _require_one_argument(name: str, function: Callable[..., Any]) -> None:
    """Raise ValueError unless a function can be called with the events alone, and at once."""
    called = _called_function(function)
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise ValueError(f"'{name}' is a coroutine; write `def` without `async`")
    if inspect.isgeneratorfunction(called):
        raise ValueError(f"'{name}' is a generator; write `return` instead of `yield`")
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Functions of compiled libraries may have none.
        return
    try:
        signature.bind(None)
    except TypeError as cause:
        raise ValueError(
            f"'{name}' must take one argument, the events; `functools.partial` sets further ones"
        ) from cause


def _called_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function or method that runs first when a callable is called."""
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    # The call of an object is a method of its class.
    call_method: Callable[..., Any] = type(function).__call__
    return call_method


def builtin_feature(function: F) -> F:
    """Register a function of ours as the feature of its name, a row of `HIGH_LEVEL`."""
    FUNCTIONS[function.__name__] = FeatureFunction(function)
    return function


def needed_branches() -> list[str]:
    """Sorted names of the branches that the features of plugins need beside the usual ones."""
    branches: set[str] = set()
    for feature in plugin_features().values():
        branches.update(feature.needs)
    return sorted(branches)


def plugin_features() -> dict[str, FeatureFunction]:
    """The high-level features of plugins, by name."""
    return {name: feature for name, feature in FUNCTIONS.items() if feature.is_plugin}
