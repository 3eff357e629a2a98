"""What is hidden of URLs and settings, and what is not."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion.errors import UnreadableFileError
from ingestion.secrets import redact, redact_all

SECRET = "hush-7f3a"  # noqa: S105 - of nobody


@pytest.mark.parametrize(
    "text",
    [
        f"s3://AKIA:{SECRET}@store/bucket/a.root",
        f"root://me:{SECRET}@eos.cern.ch//eos/a.root cannot be read",
        f"https://store/a.root?X-Amz-Signature={SECRET}&Expires=1",
        f"https://store/a.root?token={SECRET}, https://store/b.root?token={SECRET}",
        f"https://store/a.root#access_token={SECRET}",
        f"ftp://me:pa@{SECRET}@host/a.root",
        f"--set spark.conf.spark.hadoop.fs.s3a.secret.key={SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"{{'token': '{SECRET}'}}",
        f"spark.conf={{fs.secret.key: {SECRET}}}",
    ],
)
def test_secrets_are_gone(text: str) -> None:
    assert SECRET not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "/data/a=b/qcd_*.root",
        "s3://store/bucket/qcd_*.root",
        "https://store:8443/a/b.root is truncated: its header says 100 bytes",
        "train.epochs=5",
        "mail me@host, or see https://page/x",
    ],
)
def test_the_rest_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_settings_with_telling_names_are_hidden_wherever_they_are() -> None:
    content = {
        "spark": {"conf": {"fs.s3a.secret.key": SECRET, "spark.executor.cores": "4"}},
        "list": [{"token": SECRET}],
    }
    assert redact_all(content) == {
        "spark": {"conf": {"fs.s3a.secret.key": "***", "spark.executor.cores": "4"}}, "list": [{"token": "***"}]
    }  # fmt: skip


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(), st.lists))
def test_numbers_are_left_alone(content: object) -> None:
    assert redact_all(content) == content


def test_errors_hide_them_and_survive_the_way_back_from_a_task() -> None:
    error = UnreadableFileError(f"https://me:{SECRET}@store/a.root cannot be opened")
    assert SECRET not in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own
