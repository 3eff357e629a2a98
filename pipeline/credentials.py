"""Which settings hold credentials, by the rules of those that take them: Spark, Hadoop, and MPI for its environment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import GetPydanticSchema, PlainSerializer, SecretStr

from ingestion.secrets import HIDDEN, redact

_CREDENTIAL: Final = re.compile(
    # Spark's default of spark.redaction.regex, which it applies to names and values of properties, and to variables.
    r"secret|password|token|access[.]?key"
    # What Hadoop's default of hadoop.security.sensitive-config-keys adds, and the SAS of its Azure connector.
    r"|ssl[.]keystore[.]pass\b|(?:encryption|session)[.]key\b|fs[.]azure[.](?:account[.]key|oauth2|sas)\b"
    r"|fs[.]adl[.]oauth2|fs[.]gs[.](?:encryption|proxy|auth)\b|credential(?![\w.])",
    re.IGNORECASE,
)
_OVERRIDE: Final = re.compile(r"(\s*(?:--set=)?\s*(?P<keys>(?P<section>\w+)[\w.-]*)\s*[=:]).+", re.DOTALL)
#: They hold properties of Spark and arguments of launchers.
_SECTIONS: Final = ("spark", "train", "train_by_network")
#: Names before the `=` of arguments such as `MY_TOKEN=x` and `--export=ALL,MY_TOKEN=x`.
_VARIABLE: Final = re.compile(r"(?:^|[,=])([\w.-]+)=")
#: A property of Spark in the config; what is neither of the two is one mistake.
Property = Annotated[
    str | SecretStr,
    GetPydanticSchema(lambda source, handler: {**handler(source), "custom_error_type": "string_type"}),
    PlainSerializer(lambda value: value if isinstance(value, str) else HIDDEN, return_type=str, when_used="json"),
]


def holds_credential(words: str) -> bool:
    """Whether a property of Spark or a variable of this name, or with this value, holds a credential.

    Examples:
        >>> holds_credential("spark.hadoop.fs.s3a.secret.key"), holds_credential("spark.io.encryption.keySizeBits")
        (True, False)
    """
    return _CREDENTIAL.search(words) is not None


def variables_with_credentials(arguments: Sequence[str]) -> list[str]:
    """Variables that arguments of a launcher give a value to, and whose names say that it is a credential.

    Examples:
        >>> variables_with_credentials(["-x", "MY_TOKEN=hush", "-x", "MY_PASSWORD", "--hostfile=/token/hosts"])
        ['MY_TOKEN']
    """
    names = [name for word in arguments for name in _VARIABLE.findall(word)]
    return [name for name in names if holds_credential(name)]


def shown(override: str) -> str:
    """An override as it may be shown: without its value where that holds a credential.

    Examples:
        >>> shown("spark.conf.spark.my.password=hush")
        'spark.conf.spark.my.password=***'
        >>> shown("report.title=password=tt")
        'report.title=password=tt'
    """
    found = _OVERRIDE.fullmatch(override)
    # The name of a property tells in a misspelt section too.
    if found and holds_credential(override if found["section"] in _SECTIONS else found["keys"]):
        return f"{found[1]}{HIDDEN}"
    return redact(override)


def shown_command(words: Sequence[str]) -> list[str]:
    """A command line as it may be kept.

    Examples:
        >>> shown_command(["run", "--set", 'spark.conf={"spark.my.password": "a b"}', "--set=train.epochs=5"])
        ['run', '--set', 'spark.conf=***', '--set=train.epochs=5']
    """
    return [shown(word) for word in words]
