"""The file of measured messages that calibrates the simulator: the first comparison writes it, later ones read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from training.launching.probing import measure_messages
from training.settings import TrainSettings
from training.simulation.probe import Measurement

FILE: Final = "calibration.json"
#: Below and above the size of the HLF network's parameters [bytes].
_SIZES: Final = (256, 32_768)
_WORKERS: Final = 2


def read_or_measure(folder: Path, like: TrainSettings) -> list[Measurement]:
    """Messages between two processes of this machine.

    Args:
        folder: Folder of the file.
        like: Settings of the launcher and the protocol.

    Raises:
        LaunchError: The ranks do not start or fail.
    """
    settings = like.model_copy(update={"workers": _WORKERS})
    exchange = like.algorithm.sharing.protocol
    how: dict[str, Any] = {"workers": _WORKERS, "sizes": list(_SIZES), "exchange": exchange}
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["how"] == how:
            return [Measurement(**each) for each in content["messages"]]
    except (OSError, ValueError, KeyError, TypeError):
        # Absent or of another version: measure.
        pass
    found = measure_messages(settings, _SIZES)
    content = {"how": how, "messages": [each._asdict() for each in found]}
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return found
