"""Connections between ranks: whom they let in, and over which network."""

from __future__ import annotations

import socket
from typing import Any

import psutil
import pytest

from training.errors import LaunchError
from training.transports import peers


class Interface:
    """What psutil says about an interface."""

    def __init__(self, speed: int, *, isup: bool = True) -> None:
        self.speed, self.isup = speed, isup


class Address:
    """What psutil says about an address."""

    family = socket.AF_INET

    def __init__(self, address: str) -> None:
        self.address = address


@pytest.mark.parametrize(
    ("network", "addresses"),
    [
        (None, ["192.168.7.1", "10.0.0.1"]),
        ("eth0", ["10.0.0.1"]),
        ("192.168.0.0/16", ["192.168.7.1"]),
        ("lo", ["127.0.0.1"]),
        ("10.9.0.0/24", []),
    ],
)
def test_the_fastest_network_comes_first_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch, network: str | None, addresses: list[str]
) -> None:
    states = {
        "lo": Interface(0),
        "eth0": Interface(1000),
        "ib0": Interface(100_000),
        "eth1": Interface(1, isup=False),
    }
    own_value: dict[str, Any] = {
        "lo": [Address("127.0.0.1")],
        "eth0": [Address("10.0.0.1")],
        "ib0": [Address("192.168.7.1")],
        "eth1": [Address("10.9.0.1")],
    }
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: own_value)
    assert peers._host_addresses(network) == addresses


@pytest.mark.parametrize("network", ["eht0", "fd00::/64"])
def test_an_unknown_network_is_refused_with_the_names_that_exist(network: str) -> None:
    with pytest.raises(
        LaunchError, match=rf"'{network}' is no network of IPv4, and rank 0 has no .*, only .*lo"
    ):
        peers._host_addresses(network)
