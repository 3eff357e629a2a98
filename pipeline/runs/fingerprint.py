"""The fingerprint of a version, and its differences from now: the reasons to run a stage again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import TypeAdapter


@dataclass(frozen=True)
class Input:
    """One thing that a stage reads: a ROOT file, or the output of another stage."""

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
        """One hash of the fingerprint, without names of files."""
        content = {
            "inputs": {identity: each.digest for identity, each in self.inputs.items()},
            "config": self.config,
            "code": self.code,
            "parts": {name: part.digest for name, part in self.parts.items()},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Fingerprint:
        """From the manifest."""
        return _FROM_JSON.validate_python(content)

    def without_inputs(self, names: Iterable[str]) -> Fingerprint:
        """The fingerprint without some inputs."""
        kept = {identity: each for identity, each in self.inputs.items() if identity not in names}
        parts = {name: part.without_inputs(names) for name, part in self.parts.items()}
        return replace(self, inputs=kept, parts=parts)


_FROM_JSON: Final = TypeAdapter(Fingerprint)


def reasons_to_run(before: Fingerprint, now: Fingerprint) -> list[str]:
    """Why a stage is stale, in words; empty if it is up to date.

    Examples:
        >>> old = Fingerprint({}, {"features.isolation_cone": 0.3}, {})
        >>> reasons_to_run(old, Fingerprint({}, {"features.isolation_cone": 0.4}, {}))
        ['config features.isolation_cone changed (0.3 -> 0.4)']
    """
    old_inputs, new_inputs = before.inputs, now.inputs
    reasons = sorted(
        f"input added: {new_inputs[key].name}" for key in new_inputs.keys() - old_inputs.keys()
    )
    reasons += sorted(
        f"input removed: {old_inputs[key].name}" for key in old_inputs.keys() - new_inputs.keys()
    )
    reasons += sorted(
        f"input changed: {new_inputs[key].name}"
        for key in new_inputs.keys() & old_inputs.keys()
        if new_inputs[key].digest != old_inputs[key].digest
    )
    for key in sorted(now.config.keys() | before.config.keys()):
        old, new = before.config.get(key, "not set"), now.config.get(key, "not set")
        if old != new:
            reasons.append(f"config {key} changed ({_short(old)} -> {_short(new)})")
    reasons += [f"code of {name} changed" for name in changed_code(before, now)]
    return reasons + _reasons_of_parts(before.parts, now.parts)


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
