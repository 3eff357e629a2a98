"""JSON files in which a run folder keeps its state: they are checked against a type when they are read.

A file that is no JSON, lacks a key or has a wrong value is a `RunFolderError`, which names the file and the key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from pipeline.errors import RunFolderError

T = TypeVar("T")


def read_state(path: Path, kind: TypeAdapter[T], *, remedy: str) -> T:
    """The checked content of a JSON file; `remedy` is what to do if it is damaged.

    Raises:
        RunFolderError: The file cannot be read, or its content is none of this kind.
    """
    return checked(read_json(path, remedy=remedy), kind, path=path, remedy=remedy)


def read_json(path: Path, *, remedy: str) -> Any:
    """The content of a JSON file; a RunFolderError if there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) else f"it is no JSON: {cause}"
        raise damaged(path, str(reason), remedy) from cause


def checked(content: Any, kind: TypeAdapter[T], *, path: Path, remedy: str) -> T:
    """Content of a JSON file as a value of a kind; a RunFolderError that names the first wrong key."""
    try:
        return kind.validate_python(content)
    except ValidationError as cause:
        raise damaged(path, _first_mistake(cause), remedy) from cause


def damaged(path: Path, reason: str, remedy: str) -> RunFolderError:
    """The error for a damaged file."""
    return RunFolderError(f"{path} is damaged: {reason}. {remedy}")


def _first_mistake(error: ValidationError) -> str:
    """The first wrong key of a file, in words."""
    mistake = error.errors(include_url=False)[0]
    key = ".".join(map(str, mistake["loc"]))
    if mistake["type"] == "missing":
        return f"the key '{key}' is missing"
    reason = mistake["msg"].removeprefix("Value error, ")
    return f"{key}: {reason}" if key else reason
