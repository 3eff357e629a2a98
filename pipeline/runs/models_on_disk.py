"""Models that a user names by path: training folders, of one or all networks, and exported ONNX files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hep_core.paths import expand_path
from models.export.onnx_classifier import OnnxClassifier
from models.prediction import Candidate
from pipeline.errors import ConfigError, MissingInputError
from pipeline.runs.seen_events import dataset_of
from pipeline.runs.store import verify_below
from pipeline.runs.trained_models import FoundModel, read_trained, refuse_other_classes

#: Names of folders, but for those that an evaluation gives to files.
_NAME: Final = re.compile(r"(?!.*\.json$)[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
#: Other folders of an evaluation.
_TAKEN: Final = frozenset({"plots", "events", "features", "keys", "boosted-trees"})


def find_models(words: Sequence[str], classes: Sequence[str] | None = None) -> list[FoundModel]:
    """Read models.

    A word is `PATH` or `NAME=PATH`; a path is an ONNX file, the folder of a training run, or a folder of several.
    """
    found: dict[str, FoundModel] = {}
    for word in words:
        name, separator, path = word.partition("=")
        if not separator or Path(word).exists():
            name, separator, path = "", "", word
        for place in _places(Path(expand_path(path))):
            # All exported files are named `<network>/model.onnx`.
            own = place.parent if place.name == "model.onnx" else place
            chosen = (
                name
                if separator
                else (own.stem if own.suffix == ".onnx" and own.is_file() else own.name)
            )
            if chosen in found and not separator:
                chosen = f"{place.parent.parent.name}-{chosen}"
            if chosen in found or chosen in _TAKEN or not _NAME.fullmatch(chosen):
                raise ConfigError(
                    f"--model {word}: '{chosen}' is the name of two models, one that an evaluation uses itself, or "
                    f"cannot be that of a folder. Give names of at most 100 letters, digits, _ . -: "
                    f"--model first={place} --model second=..."
                )
            found[chosen] = _read(chosen, place)
    for each in found.values():
        if classes is not None:
            refuse_other_classes(each, classes)
    return list(found.values())


def _places(path: Path) -> list[Path]:
    """ONNX files and folders of training runs that a path stands for."""
    if path.is_file():
        return [path]
    if (path / "model.json").is_file():
        return [path.parent]
    if (path / "model" / "model.json").is_file():
        return [path]
    several = sorted({*path.glob("*/model/model.json"), *path.glob("*/model.onnx")})
    if several:
        return [each if each.suffix == ".onnx" else each.parents[1] for each in several]
    if not path.exists():
        raise MissingInputError(
            f"--model: there is no {path.absolute()}. Name a training folder or an ONNX file."
        )
    inside = ", ".join(sorted(each.name for each in path.iterdir())) or "nothing"
    raise MissingInputError(
        f"--model: {path} holds no trained model (no model/model.json; a training writes it after the first epoch) and "
        f"no model.onnx. It holds: {inside}."
    )


def _read(name: str, place: Path) -> FoundModel:
    verify_below(place)
    if place.is_file():
        exported, dataset = OnnxClassifier.load(place), dataset_of(place.parent)
        return FoundModel(
            Candidate(name, exported),
            exported.classes,
            exported.definitions,
            dataset,
            exported.reading,
        )
    return read_trained(name, place)
