"""Seals of JSON, and the error for a file that is not what was written."""

from __future__ import annotations

import copy
import json

import pytest

from hep_core.integrity import DamagedOutputError, has_seal, with_seal


def test_a_seal_survives_a_file_and_shows_a_changed_digit() -> None:
    document = {"layers": [50, 20], "rate": 0.1, "name": "hlf"}
    text = json.dumps(with_seal(document), indent=1)
    assert has_seal(json.loads(text))
    assert not has_seal(json.loads(text.replace("0.1", "0.9")))


@pytest.mark.parametrize("document", [{}, {"rate": 0.1}, [], None, {"seal": "x"}])
def test_content_without_its_seal_has_none(document: object) -> None:
    assert not has_seal(document)


def test_the_error_keeps_file_and_cause_in_copies_and_words() -> None:
    error = DamagedOutputError("/run/my features/part: 1.parquet", "its footer is wrong")
    same = copy.copy(error)
    message = DamagedOutputError.from_message(str(error))
    for second in (same, message):
        assert (second.path, second.damage, str(second)) == (error.path, error.damage, str(error))
    assert DamagedOutputError.from_message("a disk is full") is None
