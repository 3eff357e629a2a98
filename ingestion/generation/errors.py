"""Errors of the simulation."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from ingestion.errors import IngestionError

_PACKAGES: Final = ("pythia8mc", "fastjet")


class GenerationError(IngestionError):
    """The simulation cannot run with these settings, or on this machine."""

    is_of_the_file = False


def refuse_missing_packages() -> None:
    """Refuse to start without the extra `simulate`.

    Raises:
        GenerationError: A package is missing; the message gives the command that installs it.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise GenerationError(
            f"simulate needs {' and '.join(missing)}, which {'are' if len(missing) > 1 else 'is'} not installed. "
            f"Install the extra: .venv/bin/pip install -e '.[simulate]'"
        )
