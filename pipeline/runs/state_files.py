"""JSON files with the state of a run folder, which are checked against a type when they are read.

A file that is no JSON, lacks a key or has a wrong value ends in a `RunFolderError`, which names the
file and the key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from pipeline.errors import RunFolderError

T = TypeVar("T")


def read_state(path: Path, document_type: TypeAdapter[T], *, remedy: str) -> T:
    """Read a JSON file and check its content against a type.

    Args:
        path: The file.
        document_type: The pydantic adapter of the type.
        remedy: A sentence for the error message that says what to do about a damaged file.

    Raises:
        RunFolderError: The file cannot be read, or its content has another type.
    """
    return check_document(read_json(path, remedy=remedy), document_type, path=path, remedy=remedy)


def read_json(path: Path, *, remedy: str) -> Any:
    """Read a JSON file.

    Raises:
        RunFolderError: It cannot be read, or is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as cause:
        raise damaged(path, str(cause.strerror), remedy) from cause
    except (ValueError, RecursionError) as cause:
        raise damaged(path, f"it is no JSON: {cause}", remedy) from cause


def check_document(
    document: Any, document_type: TypeAdapter[T], *, path: Path, remedy: str, key: str = ""
) -> T:
    """Return JSON content as a value of a type, after a check.

    Args:
        document: The content of the file, or of one key there.
        document_type: The pydantic adapter of the type.
        path: The file, for messages.
        remedy: A sentence that says what to do about a damaged file.
        key: The key whose content it is; empty for the whole file.

    Raises:
        RunFolderError: A key is missing or wrong; the message names the first.
    """
    try:
        return document_type.validate_python(document)
    except ValidationError as cause:
        raise damaged(path, _first_mistake(cause, key), remedy) from cause


def damaged(path: Path, reason: str, remedy: str) -> RunFolderError:
    """Return the error for a damaged file, which the caller raises."""
    return RunFolderError(f"{path} is damaged: {reason}. {remedy}")


def _first_mistake(error: ValidationError, outer_key: str) -> str:
    """Return a phrase about the first mistake that pydantic found, with its dotted key.

    `outer_key` is put before it: the key under which the checked content lies in its file.
    """
    mistake = error.errors(include_url=False)[0]
    keys = [str(key) for key in (outer_key, *mistake["loc"]) if key != ""]
    key = ".".join(keys)
    if mistake["type"] == "missing":
        return f"the key '{key}' is missing"
    reason = mistake["msg"].removeprefix("Value error, ")
    return f"{key}: {reason}" if key else reason
