"""The share of the workers' steps that a joint model has. No torch: launchers read it."""

from __future__ import annotations

from typing import Final

SMALL_EFFECTIVE_SHARE: Final = 0.5
"""One below this is worth a sentence; see `training.loop.summary.summarize_sums`."""
