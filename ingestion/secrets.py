"""Hides secrets of URLs and settings in everything that is written: logs, manifests, pages and messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

HIDDEN: Final = "***"

#: `scheme://user:password@host`. The password may hold `/`, `?`, `#` and `@`, as keys of S3 do; it ends before the next
#: URL. A number after the colon is a port, except in the schemes of S3, which have no ports.
_USER_AND_PASSWORD: Final = re.compile(
    r"://(?:(?<=\bs3://)|(?<=\bs3[an]://)|(?![^\s/?#@:\['\"]*:\d{1,5}(?:[/?#'\",;)\]}\s]|$)))"
    r"[^\s/?#@:\['\"]*:(?:(?!://)\S)*@"
)
#: `scheme://token@host`: everything between the slashes and the last @ before the path.
_USER: Final = re.compile(r"://[^/\s?#'\"]*@")
#: `?signature=...`: the whole query and fragment, since every store has its own names for tokens. Commas and brackets
#: belong to it, except at its end, where they belong to the sentence.
_QUERY: Final = re.compile(r"(?P<address>://(?:(?!://)[^\s?#'\"])*)[?#][^\s'\"]*[^\s'\",;.:)\]}]")

#: Names of settings that hold secrets; short words count only as whole words between separators.
_TELLING: Final = (
    r"(?:secret|passw|passphrase|token|credential|signature|authorization|bearer|cookie"
    r"|(?:access|account|api|client|private|shared|ssh|subscription)[._-]?key|encryption[._-]?key(?!size)"
    r"|(?<![a-z])(?:auth|pwd|sas|(?<=[._-])pass)(?![a-z]))"
)
_SECRET_NAME: Final = re.compile(_TELLING, re.IGNORECASE)
#: From the name to the start of its value: `name=value`, `name: value`, `'name': 'value'`, as command lines, YAML, JSON
#: and Python write them; and `--name value`, also as two words of a list.
_ASSIGNMENT: Final = re.compile(
    rf"{_TELLING}[\w.-]*+(?:"
    r"(?P<closing>\\*['\"])\s*[:=]\s*|[ \t]*=(?!=)[ \t]*|(?P<colon>:)\s+|(?P<blank>\s+|\\*['\"],\s*)(?!['\"]?--))",
    re.IGNORECASE,
)
#: A key that can be the name of a setting: no path and no sentence.
_ONE_WORD: Final = re.compile(r"[^\s/]+")
_WORD: Final = re.compile(r"(?P<name>[\w.-]+)(?P<separator>=|:\s+)(?P<value>.*)", re.DOTALL)
_OPTION: Final = re.compile(r"-[\w.-]+")
#: The scheme before the secret in the value of `Authorization`.
_SCHEME: Final = re.compile(r"(?:AWS4-HMAC-SHA256|Basic|Bearer|Digest|Negotiate|Token)[ \t]+(?=\S)", re.IGNORECASE)
_OPENING: Final = re.compile(r"(?P<slashes>\\*)(?P<quote>['\"])")
#: A quoted text whose own quotes have no backslash; quotes inside it are escaped or, as in YAML, doubled.
_QUOTED: Final = {
    "'": re.compile(r"'(?:[^'\\]|\\.|'')*+'", re.DOTALL),
    '"': re.compile(r'"(?:[^"\\]|\\.|"")*+"', re.DOTALL),
}
_BARE: Final = re.compile(r"(?:(?!,['\"])\S)*")
_END_OF_SENTENCE: Final = ")]},;.:'\""
_NO_SETTING: Final = ("error", "exception", "warning")


def redact(text: str) -> str:
    """A text without the secrets of the URLs and settings in it.

    Examples:
        >>> redact("cannot read s3://me:hush@store/a.root")
        'cannot read s3://***@store/a.root'
        >>> redact("https://store/a.root?X-Amz-Signature=abc&x=1, and more")
        'https://store/a.root?***, and more'
        >>> redact("--set spark.conf.fs.s3a.secret.key=hush")
        '--set spark.conf.fs.s3a.secret.key=***'
        >>> redact("{'password': 'hush, hush', 'cores': 4}")
        "{'password': '***', 'cores': 4}"
    """
    # Hiding one secret can make the next one recognisable, so repeat until the text stays the same.
    while (hidden := _without_settings(_without_users(text))) != text:
        text = hidden
    return text


def redact_words(words: Sequence[str]) -> list[str]:
    """The words of a command without secrets; a value ends where its word ends.

    Examples:
        >>> redact_words(["mpirun", "--password", "hush", "-x", "MY_TOKEN=hush, hush", "--set", "train.epochs=5"])
        ['mpirun', '--password', '***', '-x', 'MY_TOKEN=***', '--set', 'train.epochs=5']
        >>> redact_words(['spark.conf={"spark.my.password": "hush1,hush2 hush3"}'])
        ['spark.conf=***']
    """
    return [_redact_word(word, before) for before, word in zip(["", *words], words, strict=False)]


def redact_all(content: Any, *, keep_numbers: bool = False) -> Any:
    """Nested lists and mappings without secrets: in their strings, and in the values of settings with secret names.

    Args:
        content: Anything that JSON can hold; lists of strings are taken as words of a command.
        keep_numbers: Keep numbers under secret names too. Use it for records that are read again: a sample or a class
            may be called `token`, and its counts then stand under that name.

    Examples:
        >>> redact_all({"conf": {"fs.s3a.secret.key": "hush", "cores": 4}, "files": ["s3://me:hush@store/a"]})
        {'conf': {'fs.s3a.secret.key': '***', 'cores': 4}, 'files': ['s3://***@store/a']}
        >>> redact_all({"passwords": ["a", 12345], "secret": {"key": "x"}})
        {'passwords': ['***', '***'], 'secret': {'key': '***'}}
    """
    if isinstance(content, str):
        return redact(content)
    if isinstance(content, dict):
        return {
            redact_all(key): _hide(value, keep_numbers=keep_numbers)
            if _is_secret(key, value)
            else redact_all(value, keep_numbers=keep_numbers)
            for key, value in content.items()
        }
    if isinstance(content, list | tuple):
        before = ["", *content]
        return [
            _redact_word(each, previous if isinstance(previous, str) else "")
            if isinstance(each, str)
            else redact_all(each, keep_numbers=keep_numbers)
            for previous, each in zip(before, content, strict=False)
        ]
    return content


def is_telling(name: str) -> bool:
    """Whether a name is that of a secret.

    Examples:
        >>> is_telling("fs.azure.account.key.mine"), is_telling("X-Api-Key"), is_telling("monkey")
        (True, True, False)
    """
    return _SECRET_NAME.search(name) is not None


def _is_secret(key: Any, value: Any) -> bool:
    """Whether to hide the whole value. A path or a sentence as key is no setting: the keys below it decide."""
    if not (isinstance(key, str) and is_telling(key)):
        return False
    return isinstance(value, str) or _ONE_WORD.fullmatch(key) is not None


def _hide(value: Any, *, keep_numbers: bool) -> Any:
    """A value with its strings and numbers hidden; its structure, None, booleans and empty strings stay."""
    if isinstance(value, dict):
        return {redact_all(key): _hide(each, keep_numbers=keep_numbers) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_hide(each, keep_numbers=keep_numbers) for each in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or isinstance(value, bool) or value == "" or (is_number and keep_numbers):
        return value
    return HIDDEN


def _redact_word(word: str, before: str) -> str:
    """A word of a command without secrets; `before` is the word before it."""
    if word and not word.startswith("--") and _OPTION.fullmatch(before) and is_telling(before):
        return HIDDEN
    found = _WORD.fullmatch(word)
    if found is None:
        return HIDDEN if _is_telling_structure(word) else redact(word)
    name, value = found["name"], found["value"]
    if is_telling(name) and not name.lower().endswith(_NO_SETTING):
        shown = HIDDEN if value else ""
    elif _WORD.fullmatch(value):
        shown = _redact_word(value, "")
    else:
        # The end of a secret inside the word depends on the language of the value, so hide all of it.
        plain = _without_users(value)
        shown = HIDDEN if _is_telling_structure(value) or _without_settings(plain) != plain else redact(value)
    return f"{name}{found['separator']}{shown}"


def _is_telling_structure(word: str) -> bool:
    """Whether a word is a list or mapping, in JSON or YAML, that contains the name of a secret."""
    return word.lstrip()[:1] in ("{", "[") and is_telling(_without_users(word))


def _without_users(text: str) -> str:
    """A text without users, passwords and queries of URLs."""
    if "://" not in text:
        return text
    for users in (_USER_AND_PASSWORD, _USER):
        text = users.sub(f"://{HIDDEN}@", text)
    return _QUERY.sub(rf"\g<address>?{HIDDEN}", text)


def _without_settings(text: str) -> str:
    """A text without the values of settings with secret names."""
    parts, done, place = [], 0, 0
    while found := _ASSIGNMENT.search(text, place):
        place = found.end()
        begin = _begin_of_name(text, found.start(), done)
        if not _is_assignment(text[begin : found.end()].lower(), found):
            continue
        opened = text[begin - 1] if begin and not found["closing"] and not found["blank"] else ""
        first, last = _value(text, found.end(), opened)
        if last > first:
            parts += [text[done:first], HIDDEN]
            done = place = last
    return "".join([*parts, text[done:]])


def _begin_of_name(text: str, place: int, first: int) -> int:
    while place > first and (text[place - 1].isalnum() or text[place - 1] in "_.-"):
        place -= 1
    return place


def _is_assignment(words: str, found: re.Match[str]) -> bool:
    """Whether a value follows: after a blank only if the name is an option, after a colon unless it names an error."""
    if found["blank"]:
        return words.startswith("-")
    return not (found["colon"] and words.rstrip(": \t\n").endswith(_NO_SETTING))


def _value(text: str, first: int, opened: str) -> tuple[int, int]:
    """Where a value begins and ends.

    Args:
        text: All of it.
        first: Where the value begins, or the quote or bracket before it.
        opened: The character before the name; if it is a quote, the value ends at the closing quote.
    """
    scheme = _SCHEME.match(text, first)
    first = scheme.end() if scheme else first
    if opened in ("'", '"') and (last := text.find(opened, first)) >= 0:
        return first, last
    opening = _OPENING.match(text, first)
    if opening:
        return _quoted(text, opening)
    if text[first : first + 1] in ("{", "[", "("):
        return first, _end_of_structure(text, first)
    bare = _BARE.match(text, first)
    return first, first + len((bare[0] if bare else "").rstrip(_END_OF_SENTENCE))


def _quoted(text: str, opening: re.Match[str]) -> tuple[int, int]:
    """Begin and end of a quoted text; without a closing quote it reaches to the end."""
    if opening["slashes"]:
        closing = re.compile(rf"(?<!\\){re.escape(opening[0])}").search(text, opening.end())
        return opening.end(), closing.start() if closing else len(text)
    found = _QUOTED[opening["quote"]].match(text, opening.start())
    return opening.end(), found.end() - 1 if found else len(text)


def _end_of_structure(text: str, place: int) -> int:
    """Where a list or mapping is closed; the end of the text if it stays open."""
    depth = 0
    while place < len(text):
        quoted = _QUOTED[text[place]].match(text, place) if text[place] in _QUOTED else None
        depth += (text[place] in "{[(") - (text[place] in "}])")
        place = quoted.end() if quoted else place + 1
        if not depth:
            return place
    return place
