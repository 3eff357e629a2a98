"""Texts about names that do not exist: the valid names, and the one that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

#: Share of a name that must be the same as in a valid name, by difflib, for advice.
_NEAR_ENOUGH: Final = 0.5


def did_you_mean(name: str, available: Iterable[str]) -> str:
    """Return advice on an unknown name: ` Did you mean 'x'?`; empty if no valid name is similar.

    A name is similar if difflib finds at least half of it the same, in any case of letters. The
    text starts with a space.

    Examples:
        >>> did_you_mean("isolation_con", ["isolation_cone", "min_jet_pt"])
        " Did you mean 'isolation_cone'?"
        >>> did_you_mean("qcd", ["QCD", "ttbar"])
        " Did you mean 'QCD'?"
        >>> did_you_mean("x", ["isolation_cone"])
        ''
    """
    by_small_name = {candidate.casefold(): candidate for candidate in available}
    matches = difflib.get_close_matches(name.casefold(), by_small_name, n=1, cutoff=_NEAR_ENOUGH)
    return f" Did you mean '{by_small_name[matches[0]]}'?" if matches else ""


def there_is_no(noun: str, name: str, available: Iterable[str]) -> str:
    """Return the message about an unknown name, with all valid names and the nearest.

    Args:
        noun: What the name is that of, such as `network`.
        name: The unknown name.
        available: The valid names, in the order of the message.

    Examples:
        >>> there_is_no("split", "tset", ["train", "val", "test"])
        "there is no split 'tset', only train, val, test. Did you mean 'test'?"
        >>> there_is_no("network", "x", [])
        "there is no network 'x', nor any other."
    """
    names = list(available)
    if not names:
        return f"there is no {noun} '{name}', nor any other."
    return f"there is no {noun} '{name}', only {', '.join(names)}.{did_you_mean(name, names)}"
