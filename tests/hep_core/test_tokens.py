"""Tokens and their ends: Kerberos tickets, proxies, bearer tokens, S3 session tokens."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from token_files import SECRET, json_web_token, proxy_file, ticket_file

from hep_core.input_errors import RefusedFileError, UnreadableFileError, read_error
from hep_core.tokens import (
    advice_on_tokens,
    bearer_token_end,
    kerberos_ticket,
    proxy_end,
    tokens_of,
)

END = datetime(2025, 3, 2, 3, 12, tzinfo=UTC)
LATER = datetime(2033, 1, 1, tzinfo=UTC)
USER = 4_000_000_000


def test_a_ticket_file_has_the_user_and_the_end_of_the_ticket_granting_ticket() -> None:
    assert kerberos_ticket(ticket_file(END)) == ("ada@CERN.CH", END)


def test_a_ticket_file_that_is_cut_anywhere_has_no_ticket() -> None:
    content = ticket_file(END)

    tickets = {kerberos_ticket(content[:length]) for length in range(len(content))}

    assert tickets == {None}


@pytest.mark.parametrize("content", [b"", b"no ticket file", b"\x05\x01\x00\x00"])
def test_another_file_has_no_ticket(content: bytes) -> None:
    assert kerberos_ticket(content) is None


def test_a_proxy_ends_with_the_first_certificate_of_its_chain() -> None:
    assert proxy_end(proxy_file(LATER, END)) == END
    assert proxy_end(b"no certificate") is None


def test_a_bearer_token_has_its_end_in_its_claims() -> None:
    seconds = END.timestamp()

    assert bearer_token_end(f"{json_web_token(exp=int(seconds), sub='ada')}\n") == END
    assert bearer_token_end(json_web_token(exp=seconds)) == END


@pytest.mark.parametrize(
    "token",
    [
        "",
        "opaque",
        "a.b.c",
        "ä.ö.ü",
        json_web_token(),
        json_web_token(exp="tomorrow"),
        json_web_token(exp=True),
        json_web_token(exp=1e300),
        f"x.{json_web_token().split('.')[0][:-4]}.y",
        "x.WzFd.y",
    ],
)
def test_an_end_that_a_bearer_token_does_not_state_is_unknown(token: str) -> None:
    assert bearer_token_end(token) is None


def test_a_bearer_token_is_sought_where_the_wlcg_says(tmp_path: Path) -> None:
    own_file = tmp_path / "token"
    own_file.write_text(json_web_token(exp=END.timestamp()))
    runtime_file = tmp_path / f"bt_u{USER}"
    runtime_file.write_text("opaque")
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with_file = runtime | {"BEARER_TOKEN_FILE": str(own_file)}
    with_variable = with_file | {"BEARER_TOKEN": json_web_token(exp=LATER.timestamp())}

    (first,) = tokens_of("root://server//a.root", with_variable, USER)
    (second,) = tokens_of("root://server//a.root", with_file, USER)
    (third,) = tokens_of("root://server//a.root", runtime, USER)

    assert (first.label, first.end) == ("the bearer token in BEARER_TOKEN", LATER)
    assert (second.label, second.end) == (f"the bearer token {own_file}", END)
    assert (third.label, third.end) == (f"the bearer token {runtime_file}", None)


def test_tokens_belong_to_protocols_and_folders(tmp_path: Path) -> None:
    (tmp_path / "proxy").write_bytes(proxy_file(END))
    (tmp_path / "cache").write_bytes(ticket_file(LATER))
    environment = {
        "BEARER_TOKEN": json_web_token(exp=END.timestamp()),
        "X509_USER_PROXY": str(tmp_path / "proxy"),
        "KRB5CCNAME": f"FILE:{tmp_path}/cache",
        "AWS_SESSION_TOKEN": SECRET,
        "AWS_CREDENTIAL_EXPIRATION": "2025-03-02T03:12:00Z",
    }

    def labels_of(address: str) -> list[str]:
        return [token.label for token in tokens_of(address, environment, USER)]

    ticket = f"the Kerberos ticket of ada@CERN.CH in {tmp_path}/cache"
    proxy = f"the proxy certificate {tmp_path}/proxy"
    bearer = "the bearer token in BEARER_TOKEN"
    assert labels_of("root://server//a.root") == [bearer, proxy, ticket]
    assert labels_of("/eos/user/a/a.root") == [ticket]
    assert labels_of("s3://bucket/a.root") == ["the S3 session token in AWS_SESSION_TOKEN"]
    assert labels_of("https://server/a.root") == []
    assert labels_of("/data/a.root") == []
    (session_token,) = tokens_of("s3://bucket/a.root", environment, USER)
    assert session_token.end == END


def test_a_ticket_outside_files_has_an_unknown_end() -> None:
    (token,) = tokens_of("/eos/a.root", {"KRB5CCNAME": "KCM:1000"}, USER)

    assert token.describe(END) == "the Kerberos ticket in KCM:1000 does not say when it ends"


def test_no_token_is_no_token() -> None:
    for address in ("root://server//a.root", "/eos/a.root", "s3://bucket/a.root"):
        assert tokens_of(address, {}, USER) == []


def test_a_token_that_has_ended_is_named_after_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEARER_TOKEN", json_web_token(exp=END.timestamp()))
    monkeypatch.setenv("X509_USER_PROXY", str(tmp_path / "proxy"))
    monkeypatch.setenv("KRB5CCNAME", str(tmp_path / "cache"))
    (tmp_path / "proxy").write_bytes(proxy_file(LATER))
    (tmp_path / "cache").write_bytes(ticket_file(END))
    cause = OSError("File did not open properly: [FATAL] Auth failed: No protocols left to try")

    error = read_error("root://server//a.root", where="its header", cause=cause)

    assert isinstance(error, RefusedFileError)
    assert (
        "Note: the bearer token in BEARER_TOKEN ended at 2025-03-02 03:12 UTC; get another one by "
        "htgettoken or oidc-token." in str(error)
    )
    assert (
        f"Note: the Kerberos ticket of ada@CERN.CH in {tmp_path}/cache ended at 2025-03-02 03:12 "
        f"UTC; renew it by kinit." in str(error)
    )
    assert "proxy" not in str(error)
    assert SECRET not in str(error)


def test_a_file_of_eos_names_the_ticket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'cache'}")
    (tmp_path / "cache").write_bytes(ticket_file(END))
    cause = PermissionError(13, "Permission denied")

    error = read_error("/eos/user/a/ada/a.root", where="its header", cause=cause)

    assert isinstance(error, UnreadableFileError)
    assert "ended at 2025-03-02 03:12 UTC; renew it by kinit." in str(error)


def test_a_token_that_lasts_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", LATER.isoformat())

    assert advice_on_tokens("s3://bucket/a.root", is_refused=True) == ""


def test_a_token_of_unknown_end_is_named_only_after_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    monkeypatch.delenv("AWS_CREDENTIAL_EXPIRATION", raising=False)

    assert advice_on_tokens("s3://bucket/a.root") == ""
    assert advice_on_tokens("s3://bucket/a.root", is_refused=True) == (
        " Note: the S3 session token in AWS_SESSION_TOKEN does not say when it ends; if it has "
        "ended, set the AWS_* variables of another one."
    )
