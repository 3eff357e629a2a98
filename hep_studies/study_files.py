"""The files of studies: finds, reads, checks and lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ValidationError
from rich import box
from rich.table import Table

from hep_core.paths import expand_path
from hep_studies.cells import SITUATION
from hep_studies.idle_settings import (
    forms_without_effect,
    mistakes_in_forms,
    settings_without_effect,
)
from hep_studies.nested_values import form_of, has_key
from hep_studies.parts_without_runs import PARTS, parts_without_runs
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.studied_workload import check_workload
from hep_studies.study import FOLDER, StudySettings
from pipeline.configuration.keys import Keys
from pipeline.configuration.mistakes import dotted_path, explain
from pipeline.configuration.paths import locate_paths
from pipeline.configuration.yaml_text import read_mapping
from pipeline.errors import ConfigError, nearest
from training.settings import TrainSettings

FORMS: Final = ("small", "full")
#: Sections of a run that may have mistakes, with their classes, by the name that a `ValidationError`
#: has as title.
_SECTIONS: Final[dict[str, tuple[str, type[BaseModel]]]] = {
    "TrainSettings": ("train", TrainSettings),
    "ClusterSettings": ("cluster", ClusterSettings),
}


class Study(NamedTuple):
    """A study to make."""

    name: str
    """Name of its file; the full form and runs on MPI ranks add `-full` and `-mpi`."""
    form: str
    """`small` or `full`: two sets of values of the same file."""
    settings: StudySettings


@cache
def shipped_studies() -> dict[str, Path]:
    """Return the files of the studies that come with the code, by name.

    A study has the name of its file. The tables and figures of the source that it shows are
    further names of the file.
    """
    files = {path.stem: path for path in FOLDER.glob("*.yaml")}
    files = dict(sorted(files.items()))
    further_names = {}
    for path in files.values():
        for name in read_mapping(path).get("shows") or {}:
            further_names[name] = path
    return files | further_names


def study_names() -> list[str]:
    """Return the names of the shipped studies, each once."""
    return list(dict.fromkeys(path.stem for path in shipped_studies().values()))


def list_studies() -> Table:
    """Return a table of all shipped studies: name, source, what they show, times of both forms."""
    times = [f"{form}, min" for form in FORMS]
    table = Table("study", "shows", *times, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in study_names():
        small = read_study(name, "small").settings
        full = read_study(name, "full").settings
        shows = small.source
        if small.shows:
            shows += f": {', '.join(small.shows.values())}"
        table.add_row(name, shows, f"{small.minutes:g}", f"{full.minutes:g}")
    table.columns[0].no_wrap = True
    return table


def read_study(name: str, form: str, changes: Mapping[str, Any] | None = None) -> Study:
    """Read a shipped study by its name or that of a table or figure, or a study by its path.

    The values of the form replace those of the file, and `changes` replace both. All settings of
    all runs are checked, and settings without an effect are refused. Claims, figures and tables must
    have their runs, unless the file has them and `changes` may leave the runs out.

    Args:
        name: The study.
        form: `small` or `full`.
        changes: Nested values, from the section `compare` of the config.

    Raises:
        ConfigError: There is no such study, or its file has mistakes.
    """
    changes = changes or {}
    path = _path_of_study(name)
    if form not in FORMS:
        raise ConfigError(f"compare --form {form}: there is no such form.{nearest(form, FORMS)}")
    keys_of_file = read_mapping(path)
    _refuse_mistakes(mistakes_in_forms(keys_of_file.get("forms") or {}, FORMS), str(path))
    _refuse_mistakes(forms_without_effect(keys_of_file, FORMS), str(path))
    keys = form_of(keys_of_file, form, changes)
    locate_paths({"compare": keys}, "", str(path))
    source = f"{path} with the section compare of the config" if changes else str(path)
    if "workload" in keys:
        check_workload(keys["workload"], source)
    try:
        study = StudySettings.model_validate(keys)
    except ValidationError as cause:
        raise ConfigError(explain(cause, StudySettings, file=source)) from None

    _check_settings_of_runs(study, source)
    _check_changes_have_effect(study, changes.get("train", {}), path)
    if study.execution == "mpi":
        keys_of_form = (keys_of_file.get("forms") or {}).get(form) or {}
        _check_without_cluster([changes, keys_of_file, keys_of_form], path)

    if not changes:
        _check_named_forms(keys_of_file, path)
    forms = _complete_forms(keys_of_file)
    # A config may make some of the runs: claims of the file without theirs are then "not run".
    parts_to_check = [part for part in PARTS if part in changes or not changes]
    mistakes = [
        *settings_without_effect(study, forms),
        *parts_without_runs(study, parts_to_check),
    ]
    _refuse_mistakes(mistakes, source)

    name_parts = [path.stem]
    if form != FORMS[0]:
        name_parts.append(form)
    if study.execution == "mpi":
        name_parts.append("mpi")
    return Study("-".join(name_parts), form, study)


def _check_named_forms(keys_of_file: Mapping[str, Any], path: Path) -> None:
    """Check the forms that the file of a study names, without changes of the config.

    Raises:
        ConfigError: A form has mistakes.
    """
    for form in keys_of_file.get("forms") or {}:
        try:
            StudySettings.model_validate(form_of(keys_of_file, form, {}))
        except ValidationError as cause:
            text = explain(cause, StudySettings, file=f"{path}, form {form}")
            raise ConfigError(text) from None


def _complete_forms(keys_of_file: Mapping[str, Any]) -> list[StudySettings]:
    """Return the forms of a study that are complete without changes of the config.

    The config may complete another one. Or the file does not name it, and its common values are no
    study by themselves.
    """
    forms = []
    for form in FORMS:
        with suppress(ValidationError):
            forms.append(StudySettings.model_validate(form_of(keys_of_file, form, {})))
    return forms


def _refuse_mistakes(mistakes: Sequence[str], source: str) -> None:
    """Refuse a study with mistakes. `source`: its file, and the config if that changes it.

    Raises:
        ConfigError: There are some; the message has a sentence about each.
    """
    if mistakes:
        plural = "s" if len(mistakes) > 1 else ""
        title = f"{source} has {len(mistakes)} mistake{plural}:"
        raise ConfigError("\n  ".join([title, *mistakes]))


def _path_of_study(name: str) -> Path:
    """Return the file of a study by its name, or by its path.

    Raises:
        ConfigError: There is none.
    """
    path = shipped_studies().get(name) or Path(expand_path(name))
    if path.is_file():
        return path
    missing = "file." if path.suffix else f"study.{nearest(name, shipped_studies())}"
    raise ConfigError(
        f"compare --study {name}: there is no such {missing} `compare --list` shows the shipped "
        f"studies."
    )


def described_combinations(study: StudySettings) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield a description, the method and the values of varied keys, of each run of one seed."""
    for method in study.methods:
        for values in study.combinations(method):
            described_values = [f"{key} {value}" for key, value in values.items()]
            yield ", ".join([method, *described_values]), method, values


def _check_settings_of_runs(study: StudySettings, source: str) -> None:
    """Check the settings of each run, and that its slow ranks exist.

    `source`: the file of the study, and the config if that changes it.

    Raises:
        ConfigError: A run has a mistake; the message names the run and the key.
    """
    for description, method, values in described_combinations(study):
        try:
            num_workers = study.train_settings(method, values, 1).workers
            slow_ranks = study.cluster_settings(values).slow_ranks
        except ValidationError as cause:
            section, section_type = _SECTIONS[cause.title]
            path_of = partial(_path_in_study, study, method, values, section)
            text = explain(cause, section_type, file=f"{source}: {description}", path_of=path_of)
            raise ConfigError(text) from None
        lowest_rank = min(slow_ranks, default=0)
        # A study of several numbers of workers may also have runs of one worker.
        if lowest_rank >= num_workers > 1:
            raise ConfigError(
                f"{source}: {description}: there is no slow rank {lowest_rank} among {num_workers} "
                f"workers."
            )


def _path_in_study(
    study: StudySettings, method: str, values: Mapping[str, Any], section: str, keys: Keys
) -> str:
    """Return the path of the key of a study that sets a key of a run.

    Args:
        study: The study.
        method: The method of the run.
        values: Its values of varied keys.
        section: The section of the key, `train` or `cluster`.
        keys: Lead to the key within the section.

    Examples: `train.epoch`, `methods.sgd.train.epoch`, `vary.train.epoch`.
    """
    path = dotted_path((section, *keys))
    for varied_key, value in values.items():
        if varied_key.startswith(SITUATION):
            name = varied_key.removeprefix(SITUATION)
            for set_key in study.situations[name][value]:
                if _sets(set_key, path):
                    return f"situations.{name}.{value}.{path}"
        elif _sets(varied_key, path):
            if varied_key in study.methods[method].vary:
                return f"methods.{method}.vary.{path}"
            return f"vary.{path}"
    if has_key({"train": study.methods[method].train}, path):
        return f"methods.{method}.{path}"
    return path


def _sets(key: str, path: str) -> bool:
    """Tell whether a dotted key sets the value at a path: it is the path, or a section of it."""
    return path == key or path.startswith(f"{key}.")


def _check_changes_have_effect(
    study: StudySettings, train_changes: Mapping[str, Any], path: Path
) -> None:
    """Refuse changes of keys of `train` that have no effect: every method sets or varies the key.

    Raises:
        ConfigError: There are such keys; the message names them.
    """
    replaced = [
        key for key in train_changes if all(study.replaces(method, key) for method in study.methods)
    ]
    if replaced:
        raise ConfigError(
            f"compare.train.{', '.join(replaced)} has no effect on {path}: every method sets or "
            f"varies it."
        )


def _check_without_cluster(layers: list[Mapping[str, Any]], path: Path) -> None:
    """Refuse settings of a simulated cluster where the workers are MPI ranks.

    The section `cluster` is a mistake beside `execution: mpi` in the same part of the file, and in
    the config. The file may have it for its simulated form, while another form or the config
    chooses MPI.

    `layers`: the changes of the config, then the keys of the file and those of its form.
    """
    changes, *file_layers = layers
    in_file = any(layer.get("cluster") and layer.get("execution") == "mpi" for layer in file_layers)
    if in_file or changes.get("cluster"):
        raise ConfigError(
            f"{path}: cluster has no effect beside execution: mpi, whose workers are ranks here."
        )
