"""What a version was made from, and how that differs from now: the reasons for running a stage again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

#: The folder that holds the packages.
ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("pipeline", "ingestion", "features", "models", "training")


class Input(NamedTuple):
    """One thing that a stage reads: a ROOT file, or the output of another stage."""

    name: str
    """What users call it: a path, or a stage."""
    digest: str
    """Changes when the content does."""


class Fingerprint(NamedTuple):
    """Everything that the result of a stage hangs on."""

    inputs: dict[str, Input]
    """By identity: the UUID of a file, the name of a stage."""
    config: dict[str, Any]
    """Dotted key to value, of the keys that matter."""
    code: dict[str, str]
    """Package or module to digest of its source."""

    @property
    def digest(self) -> str:
        """One hash of it all; file names do not count."""
        content = {
            "inputs": {identity: each.digest for identity, each in self.inputs.items()},
            "config": self.config,
            "code": self.code,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        inputs = {identity: each._asdict() for identity, each in self.inputs.items()}
        return {"inputs": inputs, "config": self.config, "code": self.code, "digest": self.digest}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """From the manifest."""
        inputs = {identity: Input(**each) for identity, each in content["inputs"].items()}
        return cls(inputs, content["config"], content["code"])


def reasons_to_run(before: Fingerprint, now: Fingerprint) -> list[str]:
    """Why a stage is stale, in words; empty if it is up to date.

    Examples:
        >>> old = Fingerprint({}, {"features.isolation_cone": 0.3}, {})
        >>> reasons_to_run(old, Fingerprint({}, {"features.isolation_cone": 0.4}, {}))
        ['config features.isolation_cone changed (0.3 -> 0.4)']
    """
    old_inputs, new_inputs = before.inputs, now.inputs
    reasons = sorted(f"input added: {new_inputs[key].name}" for key in new_inputs.keys() - old_inputs.keys())
    reasons += sorted(f"input removed: {old_inputs[key].name}" for key in old_inputs.keys() - new_inputs.keys())
    reasons += sorted(
        f"input changed: {new_inputs[key].name}"
        for key in new_inputs.keys() & old_inputs.keys()
        if new_inputs[key].digest != old_inputs[key].digest
    )
    for key in sorted(now.config.keys() | before.config.keys()):
        old, new = before.config.get(key, "not set"), now.config.get(key, "not set")
        if old != new:
            reasons.append(f"config {key} changed ({_short(old)} -> {_short(new)})")
    reasons += [
        f"code of {name} changed"
        for name in sorted(now.code.keys() | before.code.keys())
        if now.code.get(name) != before.code.get(name)
    ]
    return reasons


def code_digests(names: Iterable[str]) -> dict[str, str]:
    """Digest of the source of each name; see `source_files`."""
    return {name: _source_digest(name) for name in names}


def source_files(name: str) -> list[Path]:
    """Files of a package (`features`), a module (`features/schema.py`) or a folder alone (`training/*.py`).

    Raises:
        FileNotFoundError: There are none.
    """
    found = [file for path in ROOT.glob(name) for file in ([path] if path.is_file() else path.rglob("*"))]
    files = sorted(file for file in found if file.suffix in {".py", ".html", ".css"})
    if not files:
        raise FileNotFoundError(f"{ROOT / name} is named as code of a stage and does not exist")
    return files


def _source_digest(name: str) -> str:
    digest = hashlib.sha256()
    for file in source_files(name):
        digest.update(file.relative_to(ROOT).as_posix().encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
