"""Which settings hold credentials; the environment of MPI ranks follows the same rule."""

from __future__ import annotations

import re
from typing import Final

from hep_core.secrets import HIDDEN, redact

#: Spark's own rule (spark.redaction.regex), and the names that Hadoop's connectors to S3, Azure and Google document.
_CREDENTIAL: Final = re.compile(
    r"secret|password|token|credential(?![\w.])|(?:access|account|encryption|session)[._]?key\b|keystore[.]pass\b"
    r"|oauth2|[.]sas[.]|fs[.]gs[.](?:encryption|proxy|auth)\b",
    re.IGNORECASE,
)


def holds_credential(words: str) -> bool:
    """Whether a property of Spark or a variable of this name, or with this value, holds a credential.

    Examples:
        >>> holds_credential("spark.hadoop.fs.s3a.secret.key"), holds_credential("spark.io.encryption.keySizeBits")
        (True, False)
    """
    return _CREDENTIAL.search(words) is not None


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
