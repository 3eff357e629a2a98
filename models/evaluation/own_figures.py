"""Figures of plugins, drawn for each model of an evaluation and shown in the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from hep_core.plugin_functions import callable_name, remember_plugin


class OwnFigure(NamedTuple):
    """A figure of a plugin, and the sentence below it."""

    caption: str
    draw: Callable[..., Any]


#: Figures of plugins by the name of their file: `own_` and the name of the function.
OWN_FIGURES: Final[dict[str, OwnFigure]] = {}
F = TypeVar("F", bound=Callable[..., Any])


def figure(caption: str) -> Callable[[F], F]:
    """Return a decorator that registers a function as a figure of each model.

    `caption` is the sentence below the figure in the report. The function takes the
    `models.evaluation.scored_events.ScoredEvents` of the test split and the names of the classes,
    and returns a matplotlib figure. It is stored in `OWN_FIGURES`. A second figure of the same name
    is a `ValueError`.
    """

    def register(draw: F) -> F:
        name = f"own_{callable_name(draw)}"
        if name in OWN_FIGURES:
            raise ValueError(f"there is a figure '{callable_name(draw)}' already")
        remember_plugin(draw)
        OWN_FIGURES[name] = OwnFigure(caption, draw)
        return draw

    return register
