"""Secrets in URLs and settings: they reach the servers that they are for, and no log, manifest, page or message."""

from __future__ import annotations

import re
from typing import Any, Final

HIDDEN: Final = "***"

#: `scheme://user:password@host`: everything between the slashes and the last @ before the path.
_USER: Final = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*://)[^/\s?#'\"]*@")
#: `?signature=...`: all of the query and of the fragment, since every store names its tokens otherwise.
_QUERY: Final = re.compile(r"(?P<address>[A-Za-z][\w+.-]*://[^\s?#'\"]*)[?#][^\s'\",;)\]]+")
#: Names of settings whose values nobody else should see.
_TELLING: Final = r"secret|passw|token|credential|access[._-]?key|private[._-]?key|signature"
_SECRET_NAME: Final = re.compile(_TELLING, re.IGNORECASE)
#: `name=value`, `name: value` and `'name': 'value'`, as command lines, YAML and Python have them.
_ASSIGNMENT: Final = re.compile(
    rf"(?P<name>['\"]?[\w.-]*(?:{_TELLING})[\w.-]*['\"]?(?:=|:\s+)['\"]?)(?P<value>[^\s,;'\"}}\])]+)", re.IGNORECASE
)


def redact(text: str) -> str:
    """A text without the secrets of the URLs and settings in it.

    Examples:
        >>> redact("cannot read s3://me:hush@store/a.root")
        'cannot read s3://***@store/a.root'
        >>> redact("https://store/a.root?X-Amz-Signature=abc&x=1, and more")
        'https://store/a.root?***, and more'
        >>> redact("--set spark.conf.fs.s3a.secret.key=hush")
        '--set spark.conf.fs.s3a.secret.key=***'
    """
    if "://" in text:
        text = _USER.sub(rf"\g<scheme>{HIDDEN}@", text)
        text = _QUERY.sub(rf"\g<address>?{HIDDEN}", text)
    return _ASSIGNMENT.sub(rf"\g<name>{HIDDEN}", text)


def redact_all(content: Any) -> Any:
    """The same for all strings of nested lists and mappings, values of settings with telling names included.

    Examples:
        >>> redact_all({"conf": {"fs.s3a.secret.key": "hush", "cores": 4}, "files": ["s3://me:hush@store/a"]})
        {'conf': {'fs.s3a.secret.key': '***', 'cores': 4}, 'files': ['s3://***@store/a']}
    """
    if isinstance(content, str):
        return redact(content)
    if isinstance(content, dict):
        return {
            redact_all(key): HIDDEN if _is_secret(key, value) else redact_all(value) for key, value in content.items()
        }
    if isinstance(content, list | tuple):
        return [redact_all(each) for each in content]
    return content


def _is_secret(key: Any, value: Any) -> bool:
    return isinstance(key, str) and isinstance(value, str) and _SECRET_NAME.search(key) is not None
