"""What an exported file says about itself: the same entries in every form of a network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from models.saved_model import ModelSpec, inputs_json

#: Version of the file's metadata, inputs and output.
FORMAT_VERSION: Final = 2


class Provenance(NamedTuple):
    """Where an exported network comes from, and the thresholds that were measured for it."""

    run_id: str = ""
    """Its training; no two trainings have the same, also of different run folders."""
    code: Mapping[str, str] = {}
    """Version of the code that trained it, and of the code that exported it."""
    digests: Mapping[str, str] = {}
    """Digests of the features of its training, and of the network itself."""
    working_points: Mapping[str, Any] | None = None
    """Thresholds from an evaluation, as `models.evaluation.evaluation` writes them; None if there is none."""


#: Of a network of which nothing is known.
UNKNOWN: Final = Provenance()


def metadata(spec: ModelSpec, inputs: Sequence[str], provenance: Provenance) -> dict[str, str]:
    """Metadata of an exported file; lists and dictionaries are JSON.

    Args:
        spec: Specification of the network.
        inputs: The inputs of the file, in order.
        provenance: Where the network comes from.
    """
    described = inputs_json(spec.settings)
    content = {
        "classes": spec.classes,
        "inputs": {name: described[name] for name in inputs},
        "working_points": provenance.working_points,
        "settings": spec.settings.to_json(),
        "definitions": spec.definitions,
        "code": dict(provenance.code),
        "digests": dict(provenance.digests),
    }
    return {
        "format_version": str(FORMAT_VERSION),
        "run_id": provenance.run_id,
        **{key: json.dumps(value) for key, value in content.items()},
    }
