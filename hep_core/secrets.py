"""Hides secrets in texts: userinfo and signatures of URLs, and credentials of the config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import SecretStr

#: The text in place of a secret.
HIDDEN: Final = "***"

#: A URL up to a blank or the next URL. The first `word://` is a user whose password begins with
#: `//`.
_URL: Final = re.compile(r"://(?P<address>(?:[\w.+-]+://)?(?:(?!://)\S)+)")
#: `user:password@` or `token@`. An S3 key as a password may hold `/`, `?`, `#` and `@`. Digits
#: after a colon are a port, except in S3 URLs, which name a bucket.
_USERINFO: Final = re.compile(
    r"(?:(?<=\bs3://)|(?<=\bs3[an]://))[^/?#@:\['\"]*:.*@"
    r"|[^/?#@:\['\"]*:(?!\d{1,5}(?:[/?#'\",;)\]}]|$)).*@|[^/?#'\"]*@",
    re.IGNORECASE,
)
#: Parameters whose values are credentials, by the names that their stores document: S3 (signature
#: versions 4 and 2), Azure's shared access signatures, Google Cloud Storage, WebHDFS, OAuth 2,
#: XRootD and dCache, raw files of GitHub.
_PARAMETER: Final = re.compile(
    r"(?<=[?#&])(?P<name>X-Amz-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|Signature|sig"
    r"|X-Goog-(?:Signature|Credential)|delegation|access_token|authz|token)"
    # Brackets and full stops at its end belong to the sentence.
    r"=[^&#'\"]*[^&#'\",;.:)\]}]",
    re.IGNORECASE,
)
#: Shorter credentials are hidden only where the config holds them; in any text they would hide
#: parts of words.
_MIN_LENGTH: Final = 6
_secrets: Final[set[str]] = set()


def register_secrets(settings: Any) -> None:
    """Remember every `SecretStr` of nested lists and mappings, for `redact` in this process.

    Secrets of less than six characters are left out: they would hide parts of words.
    """
    if isinstance(settings, SecretStr):
        secret = settings.get_secret_value()
        if len(secret) >= _MIN_LENGTH:
            _secrets.add(secret)
    elif isinstance(settings, Mapping):
        register_secrets(list(settings.values()))
    elif isinstance(settings, list | tuple):
        for element in settings:
            register_secrets(element)


def redact(text: str) -> str:
    """Replace the known secrets in a text, and credentials in its URLs, by `***`."""
    # The longest first: one secret may be a part of another.
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _URL.sub(_redact_url, text)


def redact_all(document: Any) -> Any:
    """Redact all strings and keys of nested lists and mappings, as JSON holds them.

    The result is a copy; tuples become lists.
    """
    if isinstance(document, str):
        return redact(document)
    if isinstance(document, Mapping):
        return {redact_all(key): redact_all(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [redact_all(element) for element in document]
    return document


def _redact_url(url: re.Match[str]) -> str:
    """A URL from `://` on, with its user and password, and credentials in its query, hidden."""
    address = url["address"]
    userinfo = _USERINFO.match(url.string, *url.span("address"))
    if userinfo:
        address = f"{HIDDEN}@{url.string[userinfo.end() : url.end()]}"
    return "://" + _PARAMETER.sub(rf"\g<name>={HIDDEN}", address)
