"""Tokens that open files on servers, and when they end: Kerberos, proxies, bearer and S3 tokens.

The place and the end of a token leave this module, never its content.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

#: Protocols of XRootD; its servers choose between the tokens that a client has.
_XROOTD: Final = ("root://", "roots://", "xroot://", "xroots://")
_S3: Final = ("s3://", "s3a://")
#: Folders of file systems that ask for a Kerberos ticket.
_KERBEROS_FOLDERS: Final = ("/eos/", "/afs/")
#: How a file of MIT Kerberos begins whose numbers are big-endian; older ones are of no system now.
_TICKET_FILE: Final = b"\x05\x04"
#: The service of the ticket that gets all others has this name, in the realm of the user.
_TICKET_GRANTING: Final = b"krbtgt"


class Token(NamedTuple):
    """A token of this user: what it is, where it lies, and when it ends."""

    label: str
    """Such as "the proxy certificate /tmp/x509up_u1000"."""
    end: datetime | None
    """In UTC; None if the token does not say."""
    renewal: str
    """What to do for another one, such as "renew it by kinit"."""

    def describe(self, now: datetime) -> str:
        """Return a clause that names the token and its end, as seen at a time."""
        if self.end is None:
            return f"{self.label} does not say when it ends"
        verb = "ended" if self.end <= now else "ends"
        return f"{self.label} {verb} at {self.end:%Y-%m-%d %H:%M} UTC"


def tokens_of(
    address: str, environment: Mapping[str, str] = os.environ, user: int | None = None
) -> list[Token]:
    """Return the tokens of a user that may open a file or folder.

    Args:
        address: A path or URL.
        environment: The variables that say where tokens lie.
        user: Number of the user; by default that of this process.
    """
    user_number = os.getuid() if user is None else user
    if address.startswith(_XROOTD):
        return [
            *_bearer_tokens(environment, user_number),
            *_proxies(environment, user_number),
            *_kerberos_tickets(environment, user_number),
        ]
    if address.startswith(_S3):
        return list(_session_tokens(environment))
    is_url = "://" in address
    if not is_url and str(Path(address).absolute()).startswith(_KERBEROS_FOLDERS):
        return list(_kerberos_tickets(environment, user_number))
    return []


def advice_on_tokens(address: str, *, is_refused: bool = False) -> str:
    """Return sentences about the tokens for an address that have ended.

    They follow other sentences, so the text begins with a space; it is empty if there are none.

    Args:
        address: A path or URL that could not be opened.
        is_refused: Whether access was denied. Then tokens that do not say when they end count too.
    """
    now = datetime.now(UTC)
    sentences = ""
    for token in tokens_of(address):
        if token.end is None and is_refused:
            sentences += f" Note: {token.describe(now)}; if it has ended, {token.renewal}."
        elif token.end is not None and token.end <= now:
            sentences += f" Note: {token.describe(now)}; {token.renewal}."
    return sentences


def bearer_token_end(token: str) -> datetime | None:
    """Return when a bearer token ends, by the entry `exp` of a JSON Web Token; else None.

    Its signature is not checked: the server decides whether it is valid.
    """
    segments = token.strip().split(".")
    if len(segments) != 3:
        return None
    _, payload, _ = segments
    # The encoding of these tokens leaves out the padding.
    padding = "=" * (-len(payload) % 4)
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + padding))
    except (binascii.Error, ValueError):
        return None
    if not isinstance(claims, dict):
        return None
    return _utc(claims.get("exp"))


def proxy_end(pem: bytes) -> datetime | None:
    """Return the first end of the certificates of a proxy file; None if it holds none.

    A proxy needs its whole chain, and the user's certificate may end before the proxy. The package
    `cryptography` of the extra `xrootd` reads certificates; without it the end is unknown.
    """
    try:
        from cryptography import x509  # noqa: PLC0415 - only proxies need it
    except ImportError:
        return None
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except ValueError:
        return None
    return min(certificate.not_valid_after_utc for certificate in certificates)


def kerberos_ticket(cache: bytes) -> tuple[str, datetime] | None:
    """Return the user of a Kerberos ticket file and when the ticket ends; None if it has none.

    Ends of tickets for single services do not count: the ticket-granting ticket gets new ones.

    Args:
        cache: The bytes of a credential cache of MIT Kerberos, format 4.
    """
    if not cache.startswith(_TICKET_FILE):
        return None
    try:
        reader = _TicketReader(cache)
        realm, *names = reader.read_principal()
        while reader.has_more():
            service, end = reader.read_ticket()
            if service == [realm, _TICKET_GRANTING, realm]:
                name = b"/".join(names) + b"@" + realm
                return name.decode(errors="replace"), datetime.fromtimestamp(end, UTC)
    except struct.error:
        # The file ends too early: it is damaged, or is being written.
        return None
    return None


class _TicketReader:
    """Reads a credential cache of MIT Kerberos from its begin; numbers are big-endian.

    Raises struct.error where the file ends too early.
    """

    def __init__(self, cache: bytes) -> None:
        self._cache = cache
        (header_length,) = struct.unpack_from(">H", cache, 2)
        self._position = 4 + int(header_length)

    def has_more(self) -> bool:
        """Whether there is another entry."""
        return self._position < len(self._cache)

    def read_principal(self) -> list[bytes]:
        """Read the name of a user or service: its realm, then its components."""
        self._number(">I")  # The type of the name.
        num_components = self._number(">I")
        return [self._data() for _ in range(num_components + 1)]

    def read_ticket(self) -> tuple[list[bytes], int]:
        """Read an entry; returns the principal of its service, and its end in Unix time [s]."""
        self.read_principal()  # The user.
        service = self.read_principal()
        self._number(">H")  # The type of the key.
        self._data()
        _, _, end, _ = [self._number(">I") for _ in range(4)]
        self._number(">B")  # Whether the key is of a user.
        self._number(">I")  # Flags.
        # Addresses, then data of the authorisation: each has a type.
        for _ in range(2):
            num_entries = self._number(">I")
            for _ in range(num_entries):
                self._number(">H")
                self._data()
        # The ticket, and a second one.
        self._data()
        self._data()
        return service, end

    def _number(self, number_format: str) -> int:
        (integer,) = struct.unpack_from(number_format, self._cache, self._position)
        self._position += struct.calcsize(number_format)
        return int(integer)

    def _data(self) -> bytes:
        """Read bytes, before which their number stands."""
        length = self._number(">I")
        (data,) = struct.unpack_from(f"{length}s", self._cache, self._position)
        self._position += length
        return bytes(data)


def _bearer_tokens(environment: Mapping[str, str], user: int) -> Iterator[Token]:
    """Yield the bearer token that clients take, by the WLCG's order of discovery."""
    renewal = "get another one by htgettoken or oidc-token"
    if environment.get("BEARER_TOKEN"):
        end = bearer_token_end(environment["BEARER_TOKEN"])
        yield Token("the bearer token in BEARER_TOKEN", end, renewal)
        return
    runtime_folder = environment.get("XDG_RUNTIME_DIR") or "/tmp"  # noqa: S108 - fixed by the WLCG
    paths = [
        environment.get("BEARER_TOKEN_FILE", ""),
        f"{runtime_folder}/bt_u{user}",
        f"/tmp/bt_u{user}",  # noqa: S108 - as above
    ]
    for path in paths:
        token = _file_bytes(path)
        if token:
            end = bearer_token_end(token.decode(errors="replace"))
            yield Token(f"the bearer token {path}", end, renewal)
            return


def _proxies(environment: Mapping[str, str], user: int) -> Iterator[Token]:
    """Yield the proxy certificate of a user, if there is one."""
    path = environment.get("X509_USER_PROXY") or f"/tmp/x509up_u{user}"  # noqa: S108 - fixed by Globus
    pem = _file_bytes(path)
    if pem:
        end = proxy_end(pem)
        yield Token(f"the proxy certificate {path}", end, "renew it by voms-proxy-init")


def _kerberos_tickets(environment: Mapping[str, str], user: int) -> Iterator[Token]:
    """Yield the Kerberos ticket of a user, if there is one.

    The cache may be no file (`KCM:`, `KEYRING:`); then its end is unknown.
    """
    cache = environment.get("KRB5CCNAME") or f"FILE:/tmp/krb5cc_{user}"
    cache_type, _, path = cache.rpartition(":")
    if cache_type not in ("", "FILE"):
        yield Token(f"the Kerberos ticket in {cache}", None, "renew it by kinit")
        return
    ticket = kerberos_ticket(_file_bytes(path))
    if ticket is not None:
        owner, end = ticket
        yield Token(f"the Kerberos ticket of {owner} in {path}", end, "renew it by kinit")


def _session_tokens(environment: Mapping[str, str]) -> Iterator[Token]:
    """Yield the S3 session token of the environment; a variable of Amazon's tools has its end."""
    if not environment.get("AWS_SESSION_TOKEN"):
        return
    end: datetime | None = None
    # Without the variable, or with another text in it, only the server knows the end.
    with suppress(ValueError):
        text = environment.get("AWS_CREDENTIAL_EXPIRATION", "")
        end = datetime.fromisoformat(text).astimezone(UTC)
    renewal = "set the AWS_* variables of another one"
    yield Token("the S3 session token in AWS_SESSION_TOKEN", end, renewal)


def _file_bytes(path: str) -> bytes:
    """Return the bytes of a file of a token; none if it cannot be read."""
    try:
        return Path(path).read_bytes() if path else b""
    except OSError:
        # Without a readable token the server refuses, and its message says so.
        return b""


def _utc(seconds: object) -> datetime | None:
    """Return a Unix time [s] as a time; None for another value."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None
