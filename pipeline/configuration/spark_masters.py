"""The address of a Spark master: its forms, and the hosts of a standalone cluster."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

_HOST_AND_PORT: Final = r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):\d{1,5}"
#: Patterns of all addresses that Spark takes: local threads, clusters, standalone masters.
_FORMS: Final = (
    r"local",
    r"local\[(\*|auto|[1-9]\d*)(,[1-9]\d*)?\]",
    r"local-cluster\[\d+,\d+,\d+\]",
    r"yarn",
    r"k8s://\S+",
    rf"spark://{_HOST_AND_PORT}(,{_HOST_AND_PORT})*",
)


def is_master(master: str) -> bool:
    """Return whether a text is an address that Spark takes, with ports from 1 to 65535.

    Examples:
        >>> is_master("spark://host1:7077,host2:7077")
        True
        >>> is_master("spark:/host1:7077"), is_master("spark://host1"), is_master("local[0]")
        (False, False, False)
    """
    without_spaces = master.replace(" ", "")
    if not any(re.fullmatch(form, without_spaces) for form in _FORMS):
        return False
    try:
        ports = [port for _, port in standalone_addresses(without_spaces)]
    except ValueError:
        # A port above 65535, or brackets around no address.
        return False
    return all(ports)


def standalone_addresses(master: str) -> list[tuple[str, int]]:
    """Return (host, port) of each master of a standalone cluster; empty for other kinds.

    Examples:
        >>> standalone_addresses("spark://host1:7077,[::1]:7078")
        [('host1', 7077), ('::1', 7078)]
        >>> standalone_addresses("local[*]")
        []
    """
    if not master.startswith("spark://"):
        return []
    addresses = []
    for address in master.removeprefix("spark://").split(","):
        # The parser of URLs knows the brackets of IPv6 addresses.
        url = urlsplit(f"//{address}")
        addresses.append((url.hostname or "", url.port or 0))
    return addresses
