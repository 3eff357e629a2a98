"""Connections between ranks: whom they let in, and over which network."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from training.errors import LaunchError
from training.transports import peers

#: Address, speed [Mbit/s] and state of each interface, as psutil gives them.
INTERFACES = {
    "lo": ("127.0.0.1", 0, True),
    "eth0": ("10.0.0.1", 1000, True),
    "ib0": ("192.168.7.1", 100_000, True),
    "eth1": ("10.9.0.1", 1, False),
}


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
    states = {}
    interface_addresses = {}
    for name, (address, speed, is_up) in INTERFACES.items():
        states[name] = SimpleNamespace(speed=speed, isup=is_up)
        interface_addresses[name] = [SimpleNamespace(family=socket.AF_INET, address=address)]
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interface_addresses)

    assert peers._host_addresses(network) == addresses


@pytest.mark.parametrize("network", ["eht0", "fd00::/64"])
def test_an_unknown_network_is_refused_with_the_names_that_exist(network: str) -> None:
    message = rf"'{network}' is no network of IPv4, and rank 0 has no .*, only .*lo"
    with pytest.raises(LaunchError, match=message):
        peers._host_addresses(network)
