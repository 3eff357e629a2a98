"""Figures of plugins: drawn for each model of an evaluation, and shown in its part of the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from hep_core.plugin_functions import callable_name, remember_plugin


class OwnFigure(NamedTuple):
    """A figure of a plugin."""

    caption: str
    draw: Callable[..., Any]


#: By the name of the file: that of the function, with `own_` before it.
OWN_FIGURES: Final[dict[str, OwnFigure]] = {}
F = TypeVar("F", bound=Callable[..., Any])


def figure(caption: str) -> Callable[[F], F]:
    """Register a function that draws a figure of a model, with a sentence below it.

    It takes the `models.evaluation.scored_events.ScoredEvents` of the test split and the names of the classes, and
    returns a matplotlib figure. Two figures of one name are a `ValueError`.
    """

    def register(draw: F) -> F:
        name = f"own_{callable_name(draw)}"
        if name in OWN_FIGURES:
            raise ValueError(f"there is a figure '{callable_name(draw)}' already")
        remember_plugin(draw)
        OWN_FIGURES[name] = OwnFigure(caption, draw)
        return draw

    return register
