"""The fingerprint of a version, and its differences from now: the reasons to run a stage again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Input:
    """A ROOT file, or the output of another stage, that a stage reads."""

    name: str
    """Name for messages: a path, or a stage."""
    digest: str
    """Digest of the content."""


@dataclass(frozen=True)
class Fingerprint:
    """Everything that the result of a stage depends on. `asdict` of it is in the manifest."""

    inputs: dict[str, Input]
    """Inputs by identity: the UUID of a file, the name of a stage."""
    config: dict[str, Any]
    """Values of the config keys that matter, by dotted key."""
    code: dict[str, str]
    """Digest of the meaning of each module."""
    parts: dict[str, Fingerprint] = field(default_factory=dict)
    """Fingerprints of the parts of a stage, such as networks; a part depends only on its own fingerprint."""

    @property
    def digest(self) -> str:
        """One hash of the fingerprint, without the names of its inputs."""
        content = {
            "inputs": {identity: source.digest for identity, source in self.inputs.items()},
            "config": self.config,
            "code": self.code,
            "parts": {name: part.digest for name, part in self.parts.items()},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def without_inputs(self, identities: Iterable[str]) -> Fingerprint:
        """The fingerprint without some inputs."""
        inputs = {
            identity: source
            for identity, source in self.inputs.items()
            if identity not in identities
        }
        parts = {name: part.without_inputs(identities) for name, part in self.parts.items()}
        return replace(self, inputs=inputs, parts=parts)


def reasons_to_run(before: Fingerprint, now: Fingerprint) -> list[str]:
    """Why a stage is stale; empty if it is up to date.

    Examples:
        >>> old = Fingerprint({}, {"features.isolation_cone": 0.3}, {})
        >>> reasons_to_run(old, Fingerprint({}, {"features.isolation_cone": 0.4}, {}))
        ['config features.isolation_cone changed (0.3 -> 0.4)']
    """
    reasons = _changed_inputs(before.inputs, now.inputs)
    for key in sorted(now.config.keys() | before.config.keys()):
        old, new = before.config.get(key, "not set"), now.config.get(key, "not set")
        if old != new:
            reasons.append(f"config {key} changed ({_short(old)} -> {_short(new)})")
    reasons += [f"code of {module} changed" for module in changed_code(before, now)]
    return reasons + _reasons_of_parts(before.parts, now.parts)


def _changed_inputs(before: dict[str, Input], now: dict[str, Input]) -> list[str]:
    added = now.keys() - before.keys()
    removed = before.keys() - now.keys()
    changed = {
        identity
        for identity in now.keys() & before.keys()
        if now[identity].digest != before[identity].digest
    }
    return [
        *sorted(f"input added: {now[identity].name}" for identity in added),
        *sorted(f"input removed: {before[identity].name}" for identity in removed),
        *sorted(f"input changed: {now[identity].name}" for identity in changed),
    ]


def changed_code(before: Fingerprint, now: Fingerprint) -> list[str]:
    """Modules whose meaning changed, new modules, and modules that no longer run."""
    names = sorted(now.code.keys() | before.code.keys())
    return [name for name in names if now.code.get(name) != before.code.get(name)]


def _reasons_of_parts(before: dict[str, Fingerprint], now: dict[str, Fingerprint]) -> list[str]:
    reasons = [f"{name} is new" for name in now if name not in before]
    reasons += [f"{name} is no longer configured" for name in before if name not in now]
    for name, part in now.items():
        if name in before:
            reasons += [f"{name}: {reason}" for reason in reasons_to_run(before[name], part)]
    return reasons


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
