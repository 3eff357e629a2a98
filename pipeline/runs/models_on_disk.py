"""Models that a user names by path: training folders and exported ONNX files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hep_core.paths import expand_path
from models.export.onnx_classifier import OnnxClassifier
from models.prediction import Candidate
from pipeline.errors import ConfigError, MissingInputError
from pipeline.runs.plugin_code import without_network
from pipeline.runs.seen_events import dataset_of
from pipeline.runs.trained_models import FoundModel, check_classes, read_trained
from pipeline.runs.version import check_output_files

#: Names that a model may have, which are names of folders and not those of an evaluation's files.
_NAME: Final = re.compile(r"(?!.*\.json$)[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
#: Other folders of an evaluation.
_RESERVED_NAMES: Final = frozenset({"plots", "events", "features", "keys", "boosted-trees"})


def find_models(arguments: Sequence[str], classes: Sequence[str] | None = None) -> list[FoundModel]:
    """Read the models that a user names on the command line.

    A model without an explicit name is called after its file or folder; if that name is taken,
    the folder two levels up is put before it.

    Args:
        arguments: Each is `PATH` or `NAME=PATH`. A path is an ONNX file, the folder of a training
            run, or a folder of several.
        classes: The classes that every model must have; None allows all.

    Raises:
        MissingInputError: There is no model at a path.
        ConfigError: A path is empty, a name cannot be that of a model, or two models have the same.
        ModelError: A model cannot be read, or has other `classes`.
    """
    models: dict[str, FoundModel] = {}
    for argument in arguments:
        explicit_name, separator, path = argument.partition("=")
        # An existing path may hold an equals sign itself.
        if not separator or Path(argument).exists():
            explicit_name, separator, path = "", "", argument
        if not path:
            raise ConfigError(
                "--model: the path is empty, such as that of a variable which is not set. Name a "
                "training folder or an ONNX file."
            )
        for location in _model_locations(Path(expand_path(path))):
            name = explicit_name
            if not separator:
                name = _default_name(location)
                # Networks of two runs often have the same name.
                if name in models:
                    name = f"{location.parent.parent.name}-{name}"
            if name in models or name in _RESERVED_NAMES or not _NAME.fullmatch(name):
                raise ConfigError(
                    f"--model {argument}: '{name}' is the name of two models, one that an "
                    f"evaluation uses itself, or cannot be that of a folder. Give names of at most "
                    f"100 letters, digits, _ . -: --model first={location} --model second=..."
                )
            models[name] = _read(name, location)
    if classes is not None:
        for model in models.values():
            check_classes(model, classes)
    return list(models.values())


def _default_name(location: Path) -> str:
    """Return the name of a model without an explicit one: that of its ONNX file or folder."""
    # All files of the stage `export` are named `<network>/model.onnx`.
    if location.name == "model.onnx":
        return location.parent.name
    return location.stem if location.suffix == ".onnx" and location.is_file() else location.name


def _model_locations(path: Path) -> list[Path]:
    """Return the ONNX files and folders of training runs that a path stands for.

    The path may be a file, the folder `model` in that of a training, the folder of a training,
    or a folder with trainings and exported networks directly below it.

    Raises:
        MissingInputError: The path does not exist, or holds none of these.
    """
    if path.is_file():
        # The file `model/model.json` describes the model of a training.
        return [path.parents[1]] if path.name == "model.json" else [path]
    if (path / "model.json").is_file():
        return [path.parent]
    if (path / "model" / "model.json").is_file():
        return [path]
    # `parents[1]` is the folder of the training, two levels above its `model/model.json`.
    trainings = [file.parents[1] for file in sorted(path.glob("*/model/model.json"))]
    exported = sorted(path.glob("*/model.onnx"))
    if trainings or exported:
        return sorted([*trainings, *exported])
    if not path.exists():
        raise MissingInputError(
            f"--model: there is no {path.absolute()}. Name a training folder or an ONNX file."
        )
    names = ", ".join(sorted(child.name for child in path.iterdir())) or "nothing"
    raise MissingInputError(
        f"--model: {path} holds no trained model (no model/model.json; a training writes it after "
        f"the first epoch) and no model.onnx. It holds: {names}."
    )


def _read(name: str, location: Path) -> FoundModel:
    """Read the model of a training folder or an ONNX file, under a name; refuse damaged files."""
    check_output_files(location)
    if not location.is_file():
        return read_trained(name, location)
    exported = OnnxClassifier.load(location)
    return FoundModel(
        Candidate(name, exported),
        exported.classes,
        exported.definitions,
        dataset_of(location.parent),
        exported.reading,
        # The file holds the network itself, whose code is not run again.
        without_network(exported.plugin_code),
    )
