"""What may be registered as the function of a feature."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from features.columns import HIGH_LEVEL
from features.functions import high_level_feature


class AsyncCallable:
    """An object whose call is a coroutine."""

    async def __call__(self, events: Any) -> Any:
        """Return the missing momentum, but later."""
        return events.met


class GeneratorCallable:
    """An object whose call is a generator."""

    def __call__(self, events: Any) -> Iterator[Any]:
        """Yield the missing momentum."""
        yield events.met


def yields_values(events: Any) -> Iterator[Any]:
    """Yield the missing momentum."""
    yield events.met


async def yields_later(events: Any) -> AsyncIterator[Any]:
    """Yield the missing momentum, but later."""
    yield events.met


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (AsyncCallable(), "'AsyncCallable' is a coroutine"),
        (partial(AsyncCallable()), "is a coroutine"),
        (yields_later, "'yields_later' is a coroutine"),
        (yields_values, "'yields_values' is a generator"),
        (partial(yields_values), "'yields_values' is a generator"),
        (GeneratorCallable(), "'GeneratorCallable' is a generator"),
    ],
)
def test_a_function_that_returns_no_values_at_once_is_refused(
    function: Callable[[Any], Any], message: str
) -> None:
    columns = list(HIGH_LEVEL)

    with pytest.raises(ValueError, match=message):
        high_level_feature(unit="GeV", meaning="x")(function)

    assert columns == HIGH_LEVEL


def test_infinitely_many_bins_are_refused() -> None:
    bins: Any = (math.inf, 0, 1)

    with pytest.raises(ValueError, match=r"the bins of 'own' .* \(20, 0, 1\)"):

        @high_level_feature(unit="GeV", meaning="x", bins=bins)
        def own(events: Any) -> Any:
            return events.met
