"""Which settings hold credentials; the environment of MPI ranks follows the same rule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ingestion.secrets import HIDDEN, redact

#: Spark's own rule (spark.redaction.regex), and the names that Hadoop's connectors to S3, Azure and Google document.
_CREDENTIAL: Final = re.compile(
    r"secret|password|token|credential(?![\w.])|(?:access|account|encryption|session)[._]?key\b|keystore[.]pass\b"
    r"|oauth2|[.]sas[.]|fs[.]gs[.](?:encryption|proxy|auth)\b",
    re.IGNORECASE,
)
#: Names before the `=` of arguments such as `MY_TOKEN=x` and `--export=ALL,MY_TOKEN=x`.
_VARIABLE: Final = re.compile(r"(?:^|[,=])([\w.-]+)=")


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
    return [name for word in arguments for name in _VARIABLE.findall(word) if holds_credential(name)]


def shown(word: str) -> str:
    """A word of the command line for messages and logs: the value of a credential is hidden.

    Examples:
        >>> shown("spark.conf.spark.my.password=hush"), shown("--set=spark.conf={spark.my.password: a b}")
        ('spark.conf.spark.my.password=***', '--set=spark.conf=***')
        >>> shown("report.title=password=tt")
        'report.title=password=tt'
    """
    keys, separator, value = word.removeprefix("--set=").partition("=")
    # Sections with properties of Spark and arguments of launchers. In a misspelt one, the name of the property decides.
    is_of_section = keys.strip().startswith(("spark", "train"))
    if separator and (holds_credential(keys) or (is_of_section and holds_credential(value))):
        return f"{word[: len(word) - len(value)]}{HIDDEN}"
    return redact(word)
