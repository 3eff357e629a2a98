"""Advice on files where a model decides how they are read, and no key of the config helps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hep_core.input_errors import InputFileError

#: What to do about files that do not fit to a model.
MODEL_DECIDES: Final = (
    "The model decides how files are read: by the tree, branches and units of its training. Write "
    "such files, for example by Define and Snapshot of RDataFrame; keys of the config have no "
    "effect here."
)
#: What to do if a branch to copy does not fit.
_KEEP_ANOTHER: Final = "If it is a branch of --keep, name another one there."


@contextmanager
def advise_on_model(*, keeps_branches: bool) -> Iterator[None]:
    """Give errors about files in the context a remedy other than keys of the config.

    Args:
        keeps_branches: Whether branches that the user names are copied.

    Raises:
        InputFileError: The error, with its remedy.
    """
    try:
        yield
    except InputFileError as error:
        remedy = f"{_KEEP_ANOTHER} {MODEL_DECIDES}" if keeps_branches else MODEL_DECIDES
        advised = error.with_remedy(remedy)
        # An error without a remedy in the config stays as it is, and keeps its own cause.
        if advised is error:
            raise
        raise advised from error
