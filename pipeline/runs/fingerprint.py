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
    """Fingerprints of the parts of a stage, such as networks.

    A part depends only on its own fingerprint.
    """

    @property
    def digest(self) -> str:
        """SHA-256 of the fingerprint without the names of its inputs, which change no result."""
        document = {
            "inputs": {identity: source.digest for identity, source in self.inputs.items()},
            "config": self.config,
            "code": self.code,
            "parts": {name: fingerprint.digest for name, fingerprint in self.parts.items()},
        }
        text = json.dumps(document, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def without_inputs(self, identities: Iterable[str]) -> Fingerprint:
        """Return a copy without the inputs of some identities, also in its parts.

        An identity is the UUID of a file, or the name of a stage.
        """
        inputs = {
            identity: source
            for identity, source in self.inputs.items()
            if identity not in identities
        }
        reduced_parts = {
            name: fingerprint.without_inputs(identities) for name, fingerprint in self.parts.items()
        }
        return replace(self, inputs=inputs, parts=reduced_parts)


def reasons_to_run(recorded: Fingerprint, current: Fingerprint) -> list[str]:
    """Return why a stage is stale, as phrases for a message; empty if it is up to date.

    Inputs, config values, code and parts of two fingerprints are compared one by one.

    Args:
        recorded: The fingerprint with which the existing output was made.
        current: The fingerprint that a run would have now.

    Examples:
        >>> old = Fingerprint({}, {"features.isolation_cone": 0.3}, {})
        >>> reasons_to_run(old, Fingerprint({}, {"features.isolation_cone": 0.4}, {}))
        ['config features.isolation_cone changed (0.3 -> 0.4)']
    """
    return [
        *_changed_inputs(recorded.inputs, current.inputs),
        *_changed_config(recorded.config, current.config),
        *_changed_code(recorded.code, current.code),
        *_reasons_of_parts(recorded.parts, current.parts),
    ]


def _changed_inputs(recorded: dict[str, Input], current: dict[str, Input]) -> list[str]:
    """Return phrases about the inputs that were added, removed or changed, in this order.

    Inputs are compared by their identity (such as the UUID of a file) and their digest, so a
    renamed file is the same input.
    """
    added = current.keys() - recorded.keys()
    removed = recorded.keys() - current.keys()
    changed = {
        identity
        for identity in current.keys() & recorded.keys()
        if current[identity].digest != recorded[identity].digest
    }
    return [
        *sorted(f"input added: {current[identity].name}" for identity in added),
        *sorted(f"input removed: {recorded[identity].name}" for identity in removed),
        *sorted(f"input changed: {current[identity].name}" for identity in changed),
    ]


def _changed_config(recorded: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Return phrases about the config keys whose values differ, by key."""
    reasons = []
    for key in sorted(current.keys() | recorded.keys()):
        old_value = recorded.get(key, "not set")
        new_value = current.get(key, "not set")
        if old_value == new_value:
            continue
        old_text = _short(old_value)
        new_text = _short(new_value)
        reasons.append(f"config {key} changed ({old_text} -> {new_text})")
    return reasons


def _changed_code(recorded: dict[str, str], current: dict[str, str]) -> list[str]:
    """Return phrases about the modules that differ, or that are used in one case only, by name."""
    reasons = []
    for module in sorted(current.keys() | recorded.keys()):
        if module not in current:
            reasons.append(f"code of {module} is not used any more")
        elif module not in recorded:
            reasons.append(f"code of {module} is used now")
        elif current[module] != recorded[module]:
            reasons.append(f"code of {module} changed")
    return reasons


def _reasons_of_parts(
    recorded: dict[str, Fingerprint], current: dict[str, Fingerprint]
) -> list[str]:
    """Return phrases about parts that are new, gone or changed; parts are, for example, networks.

    The reasons of a part that both fingerprints have begin with its name.
    """
    new_names = [name for name in current if name not in recorded]
    former_names = [name for name in recorded if name not in current]
    reasons = [f"{name} is new" for name in new_names]
    reasons += [f"{name} is no longer configured" for name in former_names]
    for name, fingerprint in current.items():
        if name in recorded:
            reasons_of_name = reasons_to_run(recorded[name], fingerprint)
            reasons += [f"{name}: {reason}" for reason in reasons_of_name]
    return reasons


def _short(value: object) -> str:
    """Return a value as text of at most 40 letters."""
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
