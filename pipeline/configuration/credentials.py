"""Which settings hold credentials; the environment of MPI ranks follows the same rule."""

from __future__ import annotations

import re
from typing import Final

from hep_core.secrets import HIDDEN, redact

#: Spark's own rule (spark.redaction.regex), and the names that Hadoop's connectors to S3, Azure and
#: Google document.
_CREDENTIAL: Final = re.compile(
    r"secret|password|token|credential(?![\w.])"
    r"|(?:access|account|encryption|session)[._]?key\b|keystore[.]pass\b"
    r"|oauth2|[.]sas[.]|fs[.]gs[.](?:encryption|proxy|auth)\b",
    re.IGNORECASE,
)


def holds_credential(text: str) -> bool:
    """Return whether a property of Spark, or a variable, is a credential by its name or value.

    The text is searched for words such as `secret`, `password` or `access.key`, in any case.

    Examples:
        >>> holds_credential("spark.hadoop.fs.s3a.secret.key")
        True
        >>> holds_credential("spark.io.encryption.keySizeBits")
        False
    """
    return _CREDENTIAL.search(text) is not None


def hide_credentials(argument: str) -> str:
    """Return an argument of the command line for messages, without the value of a credential.

    The value becomes stars if its key names a credential. A value of the sections `spark` and
    `train` also does if it holds such a name itself. From all others only secrets known by their
    form, such as passwords in URLs, are removed.

    Examples:
        >>> hide_credentials("spark.conf.spark.my.password=hush")
        'spark.conf.spark.my.password=***'
        >>> hide_credentials("--set=spark.conf={spark.my.password: a b}")
        '--set=spark.conf=***'
        >>> hide_credentials("report.title=password=tt")
        'report.title=password=tt'
    """
    keys, equals, value = argument.removeprefix("--set=").partition("=")
    # These sections hold properties of Spark and arguments of launchers. A prefix suffices: the
    # section may be misspelt.
    may_hold_properties = keys.strip().startswith(("spark", "train"))
    is_secret = holds_credential(keys) or (may_hold_properties and holds_credential(value))
    if equals and is_secret:
        return argument.removesuffix(value) + HIDDEN
    return redact(argument)
