"""What is known to be a secret is hidden: userinfo and signed parameters of URLs, and the credentials of the config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import SecretStr

HIDDEN: Final = "***"

#: To a blank or to the next URL. The first `word://` is a user whose password begins with `//`.
_URL: Final = re.compile(r"://(?P<rest>(?:[\w.+-]+://)?(?:(?!://)\S)+)")
#: `user:password@` or `token@`. An S3 key as a password may hold `/`, `?`, `#` and `@`. Digits after a colon are a
#: port, except in S3 URLs, which name a bucket.
_USERINFO: Final = re.compile(
    r"(?:(?<=\bs3://)|(?<=\bs3[an]://))[^/?#@:\['\"]*:.*@"
    r"|[^/?#@:\['\"]*:(?!\d{1,5}(?:[/?#'\",;)\]}]|$)).*@|[^/?#'\"]*@",
    re.IGNORECASE,
)
#: Parameters whose values are credentials, by the names that their stores document: S3 (signature versions 4 and 2),
#: Azure's shared access signatures, Google Cloud Storage, WebHDFS, OAuth 2, XRootD and dCache, raw files of GitHub.
_PARAMETER: Final = re.compile(
    r"(?<=[?#&])(?P<name>X-Amz-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|Signature|sig"
    r"|X-Goog-(?:Signature|Credential)|delegation|access_token|authz|token)"
    # Brackets and full stops at its end are the sentence's.
    r"=[^&#'\"]*[^&#'\",;.:)\]}]",
    re.IGNORECASE,
)
#: Shorter credentials are hidden where the config holds them; as a part of any text they would hide words of it.
_SHORTEST: Final = 6
_known: Final[set[str]] = set()


def register_secrets(content: Any) -> None:
    """From now on, hide the value of every `SecretStr` of nested lists and mappings wherever this process shows it."""
    if isinstance(content, SecretStr):
        value = content.get_secret_value()
        _known.update({value} if len(value) >= _SHORTEST else ())
    elif isinstance(content, Mapping):
        register_secrets(list(content.values()))
    elif isinstance(content, list | tuple):
        for each in content:
            register_secrets(each)


def redact(text: str) -> str:
    """A text without what is known to be a secret."""
    # The longest first: one secret may be a part of another.
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _URL.sub(_without_credentials, text)


def redact_all(content: Any) -> Any:
    """The same for all strings of nested lists and mappings, as JSON holds them."""
    if isinstance(content, str):
        return redact(content)
    if isinstance(content, Mapping):
        return {redact_all(key): redact_all(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [redact_all(each) for each in content]
    return content


def _without_credentials(found: re.Match[str]) -> str:
    """A URL from `://` on, without userinfo and the values of signed parameters."""
    userinfo = _USERINFO.match(found.string, *found.span("rest"))
    shown = f"{HIDDEN}@{found.string[userinfo.end() : found.end()]}" if userinfo else found["rest"]
    return "://" + _PARAMETER.sub(rf"\g<name>={HIDDEN}", shown)
