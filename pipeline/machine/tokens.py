"""Checks before a run whether the tokens that its files need last until its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from hep_core.tokens import Token, tokens_of
from pipeline.config import Config
from pipeline.machine.doctor import Finding

_SECONDS_PER_HOUR: Final = 3600


def tokens_by_address(config: Config) -> dict[str, list[Token]]:
    """Return the tokens of this user that may open the files of a run, by path or URL.

    Addresses for which there is no token, as of most local files, are left out.
    """
    addresses = [str(config.run_dir), config.storage or "", *config.evaluate.data]
    for sample in config.samples:
        addresses += sample.files
    tokens = {}
    for address in addresses:
        if address_tokens := tokens_of(address):
            tokens[address] = address_tokens
    return tokens


def check_tokens(
    tokens: Mapping[str, Sequence[Token]], *, run_seconds: float, now: datetime
) -> Iterator[Finding]:
    """Yield a warning for each set of tokens of which none lasts as long as a run takes.

    A server may take any of the tokens for it, so one that lasts suffices.

    Args:
        tokens: The tokens that may open each path or URL.
        run_seconds: How long a run takes.
        now: The time at which the run would start.
    """
    end_of_run = now + timedelta(seconds=run_seconds)
    checked: list[Sequence[Token]] = []
    for address, address_tokens in tokens.items():
        # A token that does not say when it ends may last.
        may_last = any(token.end is None or token.end > end_of_run for token in address_tokens)
        if may_last or address_tokens in checked:
            continue
        checked.append(address_tokens)
        clauses = [token.describe(now) for token in address_tokens]
        problem = f"For {address}: {', '.join(clauses)}"
        if run_seconds:
            problem += f", and the last run took {run_seconds / _SECONDS_PER_HOUR:.1f} h"
        renewals = [token.renewal for token in address_tokens]
        fix = f"Before the run, {' or '.join(renewals)}."
        yield Finding("tokens", "warning", f"{problem}.", fix)
