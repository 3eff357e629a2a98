"""What is hidden: userinfo and signed parameters of URLs, and credentials of the config; and
nothing of the physics."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import SecretStr

from hep_core import secrets
from hep_core.input_errors import UnreadableFileError
from hep_core.secrets import redact, redact_all, register_secrets

SECRET = "hush-7f3a"  # noqa: S105 - of nobody
#: Words of the field that look like names of secrets.
PHYSICS = [
    "/data/sig=1/token=3/password=x/key=value/a.root",
    "root://eos.cern.ch:1094//eos/signature=tt/a.root",
    "https://store/signature=tt/a.root?sigma=3&design=2&run_token=5&x=signature",
    "s3://store/bucket/secret_sector/qcd_*.root",
    "token_study",
    "features.kernel_pass",
    "kernel_pass.py and author=me, sasha=you",
    "Jets as tokens: the password to the secret sector",
    "the events that pass: 12, passed: 3, bypass=4, signature: 5, token=6",
    "found character '@' that cannot start any token\n  in line 3",
    "NoCredentialsError: Unable to locate credentials",
]


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(secrets, "_secrets", set())
    return


@pytest.mark.parametrize(
    "text",
    [
        f"s3://AKIA:{SECRET}@store/bucket/a.root",
        f"s3://AKIA:12345/{SECRET}@bucket/a.root",
        f"s3://AKIA://a/{SECRET}@bucket/a.root",
        f"https://{SECRET}@host/f",
        f"https://me:{SECRET}/x@host/f,https://me:y/{SECRET}@host/g",
        f"root://me:{SECRET}@eos.cern.ch//eos/a.root cannot be read",
        f"https://store/a.root?X-Amz-Signature={SECRET}&Expires=1",
        f"https://store/a.root?Expires=1&Signature={SECRET}",
        f"https://store/a.root?se=2030&sig={SECRET}%3D",
        f"https://store/a.root?X-Goog-Credential={SECRET}&X-Goog-Signature={SECRET}",
        f"https://store/a.root?token={SECRET},https://store/b.root?token={SECRET}",
        f"https://store/a.root#access_token={SECRET}",
        f"root://eos//a.root?xrd.wantprot=unix&authz=Bearer%20{SECRET}",
        f"webhdfs://namenode/a.root?delegation={SECRET}",
        f"{{'files': ['https://store/a.root?sig={SECRET}']}}",
    ],
)
def test_secrets_of_urls_are_hidden(text: str) -> None:
    assert SECRET not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        *PHYSICS,
        "https://store:8443/a/b.root is truncated: its header says 100 bytes",
        "mail me@host, or see https://page/x",
        "https://host:8443/a@b/c.root",
        "['https://host:8443','me@host']",
        '{"first":"https://host","second":"me@host"}',
        "root://eos//a.root?xrd.wantprot=gsi,unix",
        "s3://bucket/a@b/c:d@e.root",
    ],
)
def test_texts_without_secrets_stay_unchanged(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "displayed"),
    [
        ("s3://AKIA:ab/cd@bucket/f is truncated", "s3://***@bucket/f is truncated"),
        ("(https://me:a/b@store/a.root?token=a,b).", "(https://***@store/a.root?token=***)."),
        (
            "https://store/signature=tt/a.root?x=1&Signature=a",
            "https://store/signature=tt/a.root?x=1&Signature=***",
        ),
        ("https://store/a?token=x, https://store/b", "https://store/a?token=***, https://store/b"),
    ],
)
def test_the_text_around_a_secret_stays_readable(text: str, displayed: str) -> None:
    assert redact(text) == displayed


@given(st.text(st.sampled_from("ab0/+=?#@&;,"), max_size=40))
@example("12345/")
@example("0;@#")
def test_passwords_of_urls_may_hold_anything_but_blanks(password: str) -> None:
    assert redact(f"s3://AKIA:{password}{SECRET}@bucket/f.root") == "s3://***@bucket/f.root"


def test_credentials_of_the_config_are_hidden_wherever_they_stand() -> None:
    register_secrets(
        {
            "spark": {"conf": {"a": SecretStr(SECRET), "b": "plain text"}},
            "list": [SecretStr(f"{SECRET}+more")],
        }
    )
    assert redact_all({f"why {SECRET}": [f"'{SECRET}+more' is refused", "plain text"]}) == {
        "why ***": ["'***' is refused", "plain text"]
    }


def test_short_credentials_hide_no_parts_of_texts() -> None:
    register_secrets([SecretStr("4"), SecretStr(""), SecretStr("true")])
    assert redact("4 jets are true") == "4 jets are true"


def test_errors_hide_secrets_and_can_be_pickled() -> None:
    error = UnreadableFileError(f"https://me:{SECRET}@store/a.root cannot be opened")
    assert SECRET not in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own
