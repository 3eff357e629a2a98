"""Which settings hold credentials, by the rules of Spark and Hadoop; the environment of MPI ranks follows them too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import GetPydanticSchema, PlainSerializer, SecretStr

from ingestion.secrets import HIDDEN, redact

_CREDENTIAL: Final = re.compile(
    # Default of spark.redaction.regex; Spark applies it to names and values of properties and to variables.
    r"secret|password|token|access[._]?key"
    # Further names in Hadoop's default of hadoop.security.sensitive-config-keys, and SAS of its Azure connector.
    r"|ssl[.]keystore[.]pass\b|(?:encryption|session)[.]key\b|fs[.]azure[.](?:account[.]key|oauth2|sas)\b"
    r"|fs[.]adl[.]oauth2|fs[.]gs[.](?:encryption|proxy|auth)\b|credential(?![\w.])",
    re.IGNORECASE,
)
_OVERRIDE: Final = re.compile(r"(\s*(?:--set=)?\s*(?P<keys>(?P<section>\w+)[\w.-]*)\s*[=:]).+", re.DOTALL)
#: Sections with properties of Spark and arguments of launchers.
_SECTIONS: Final = ("spark", "train", "train_by_network")
#: Names before the `=` of arguments such as `MY_TOKEN=x` and `--export=ALL,MY_TOKEN=x`.
_VARIABLE: Final = re.compile(r"(?:^|[,=])([\w.-]+)=")
#: A property of Spark in the config. A value of neither type is one mistake, not two.
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
    """Variables that a launcher's arguments set, and whose names say that they hold a credential.

    Examples:
        >>> variables_with_credentials(["-x", "MY_TOKEN=hush", "-x", "MY_PASSWORD", "--hostfile=/token/hosts"])
        ['MY_TOKEN']
    """
    names = [name for word in arguments for name in _VARIABLE.findall(word)]
    return [name for name in names if holds_credential(name)]


def shown(override: str) -> str:
    """An override for messages and logs: its value is hidden if it holds a credential.

    Examples:
        >>> shown("spark.conf.spark.my.password=hush")
        'spark.conf.spark.my.password=***'
        >>> shown("report.title=password=tt")
        'report.title=password=tt'
    """
    found = _OVERRIDE.fullmatch(override)
    # In a misspelt section, the name of the property decides.
    if found and holds_credential(override if found["section"] in _SECTIONS else found["keys"]):
        return f"{found[1]}{HIDDEN}"
    return redact(override)


def shown_command(words: Sequence[str]) -> list[str]:
    """A command line for messages and logs.

    Examples:
        >>> shown_command(["run", "--set", 'spark.conf={"spark.my.password": "a b"}', "--set=train.epochs=5"])
        ['run', '--set', 'spark.conf=***', '--set=train.epochs=5']
    """
    return [shown(word) for word in words]
