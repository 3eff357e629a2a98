"""`predict`: scores of ROOT files that need no labels, one row for each entry of a file in its order."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import uproot
from numpy.typing import NDArray

from features.dataset import FeatureDataset
from hep_core.input_errors import InputFileError
from hep_core.paths import expand_path
from hep_core.plugins import load_from_environment
from ingestion.conflicts import tree_identity
from ingestion.errors import BadFilesError
from ingestion.files import FileInfo
from ingestion.settings import IngestSettings
from models.prediction_files import probability_branches
from pipeline.configuration.paths import folder_of_option
from pipeline.errors import ConfigError, cannot_write, full_disk_error
from pipeline.machine.spark_session import counted
from pipeline.run_folder import RunFolder
from pipeline.runs.model_registry import Registry
from pipeline.runs.own_folders import new_folder
from pipeline.runs.seen_events import count_seen_of
from pipeline.scoring import FLAGS, EventClassifier, load_classifier
from pipeline.terminal.progress import Bar

TREE: Final = "predictions"
#: Columns beside the probabilities.
OWN_COLUMNS: Final = ("entry", "flag", "predicted")


class FileDone(NamedTuple):
    """The scores of one file."""

    path: str
    entries: int
    flags: dict[str, int]
    """Numbers of entries by FLAGS."""

    @property
    def scored(self) -> int:
        """Number of entries with scores."""
        return self.flags.get(FLAGS[0], 0)

    @property
    def reasons(self) -> str:
        """Why the others have none, in words."""
        others = [
            f"{name.replace('_', ' ')} {count}"
            for name, count in self.flags.items()
            if name != FLAGS[0]
        ]
        return f" ({', '.join(others)})" if others else ""


class Done(NamedTuple):
    """All files, in the order of the inputs."""

    files: list[FileDone]
    events_per_second: float


def predict(
    run_folder: RunFolder,
    inputs: Sequence[str],
    out: Path,
    *,
    model: str | None = None,
    network: str | None = None,
    parquet: bool = False,
    keep: Sequence[str] = (),
) -> Done:
    """Score all entries of some ROOT files, and write a file for each; several files are scored by Spark.

    A file of scores is a friend tree `predictions`, or Parquet. Its columns are `entry`, `flag` (a number of FLAGS),
    `predicted` (-1 without scores), `probability_<class>` (NaN without scores), and the branches that are kept.

    Args:
        run_folder: Gives the model in use and Spark; all else comes from the model.
        inputs: Globs or URLs.
        out: A new folder.
        model: Training folder or ONNX file; None for the model in use.
        network: Which of several models in use.
        parquet: Whether to write Parquet.
        keep: Branches of one number per event.
    """
    place = (
        expand_path(model)
        if model
        else str(Registry.in_use(run_folder.config.run_dir, network).folder)
    )
    classifier = load_classifier(place)
    if taken := sorted({*keep} & {*OWN_COLUMNS, *probability_branches(classifier.classes)}):
        raise ConfigError(
            f"--keep: {', '.join(taken)} is a column of the scores themselves. Keep other branches."
        )
    settings, infos = classifier.files(
        [expand_path(path) for path in inputs], run_folder.say, keep=keep
    )
    # The samples of the training may have stated the tree themselves.
    uuids = [
        each for info in infos for each in (info.uuid, tree_identity(info.uuid, settings.tree_name))
    ]
    if classifier.dataset and (
        seen := count_seen_of(FeatureDataset.load(classifier.dataset), uuids)
    ):
        run_folder.say(
            f"  warning: {classifier.name} was trained on {seen} events of these files; their scores are better than "
            f"those of new events"
        )
    began = time.monotonic()
    with new_folder(folder_of_option(out, "--out")) as folder:
        names = _names(infos, "parquet" if parquet else "root")
        work = [(info, folder / name) for info, name in zip(infos, names, strict=True)]
        total = sum(info.entries for info in infos)
        if len(work) > 1 and find_spec("pyspark"):
            found = _on_spark(run_folder, place, settings, keep, work, total)
        else:
            with Bar(run_folder.console, "predict", "events", total) as bar:
                found = [
                    _score_file(classifier, settings, keep, *each, on_events=bar.add)
                    for each in work
                ]
        failed = [result for result in found if not isinstance(result, FileDone)]
        for name, error in failed:
            if isinstance(error, OSError):
                raise cannot_write(
                    out / name, error, alternative="another folder with --out"
                ) from error
        BadFilesError.raise_any(
            [(path, error) for path, error in failed if isinstance(error, InputFileError)]
        )
    files = [
        each._replace(path=str(out / Path(each.path).name))
        for each in found
        if isinstance(each, FileDone)
    ]
    return Done(files, total / max(time.monotonic() - began, 1e-9))


def _names(infos: Sequence[FileInfo], suffix: str) -> list[str]:
    """Names of the files of scores: those of the inputs, with a number where two are the same."""
    names: list[str] = []
    for info in infos:
        stem, number = Path(info.path).name.removesuffix(".root"), 1
        while (name := f"{stem}{f'-{number}' if number > 1 else ''}.scores.{suffix}") in names:
            number += 1
        names.append(name)
    return names


@lru_cache(maxsize=1)
def _loaded(place: str) -> EventClassifier:
    """The classifier, read once by a Python worker of Spark."""
    load_from_environment()
    return load_classifier(place)


def _on_spark(
    run_folder: RunFolder,
    place: str,
    settings: IngestSettings,
    keep: Sequence[str],
    work: Sequence[tuple[FileInfo, Path]],
    total: int,
) -> list[FileDone | tuple[str, InputFileError | OSError]]:
    """Score each file in a task."""
    with Bar(run_folder.console, "Spark", "") as bar:
        show = partial(bar, 0, 0)
        show("starting")
        paths = [info.path for info, _ in work]
        spark = run_folder.spark.context(folder=work[0][1].parent, inputs=paths, show=show)
    absolute = str(Path(place).absolute())
    try:
        with (
            Bar(run_folder.console, "predict", "events") as bar,
            counted(spark, bar, total) as done,
        ):

            def run(each: tuple[FileInfo, Path]) -> FileDone | tuple[str, InputFileError | OSError]:
                return _score_file(_loaded(absolute), settings, keep, *each, on_events=done.add)

            return list(
                spark.parallelize(work, run_folder.spark.num_tasks(len(work))).map(run).collect()
            )
    finally:
        run_folder.spark.stop()


def _score_file(
    classifier: EventClassifier,
    settings: IngestSettings,
    keep: Sequence[str],
    info: FileInfo,
    path: Path,
    *,
    on_events: Callable[[int], object],
) -> FileDone | tuple[str, InputFileError | OSError]:
    """Write the scores of a file; an error of the file, or of the disk, is a result: Spark would try the task again."""
    counts: Counter[int] = Counter()
    try:
        with _writer(
            path, classifier.classes, {name: info.pass_through[name] for name in keep}
        ) as write:
            for raw, scored in classifier.entries(info, settings):
                write(classifier.columns(raw, scored) | raw.pass_through)
                counts.update(scored.flag.tolist())
                on_events(raw.num_events)
    except InputFileError as problem:
        return info.path, problem
    except Exception as error:
        cause = full_disk_error(error)
        if cause is None:
            raise
        return path.name, cause
    return FileDone(
        str(path),
        info.entries,
        {name: counts[flag] for flag, name in enumerate(FLAGS) if counts[flag]},
    )


@contextmanager
def _writer(
    path: Path, classes: Sequence[str], kept: Mapping[str, str]
) -> Iterator[Callable[[Mapping[str, NDArray[Any]]], None]]:
    """Writes columns to a new file; its metadata, or the title of the tree, say the classes and flags as JSON."""
    types = {"entry": "int64", "flag": "int8", "predicted": "int64"}
    types |= dict.fromkeys(probability_branches(classes), "float32") | dict(kept)
    words = {"classes": list(classes), "flags": list(FLAGS)}
    if path.suffix == ".parquet":
        schema = pa.schema([(name, pa.from_numpy_dtype(kind)) for name, kind in types.items()])
        schema = schema.with_metadata({name: json.dumps(each) for name, each in words.items()})
        with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as file:
            yield lambda columns: file.write_table(
                pa.table({name: columns[name] for name in types}, schema=schema)
            )
        return
    with uproot.recreate(path) as file:
        tree = file.mktree(TREE, types, title=json.dumps(words))
        yield lambda columns: tree.extend({name: columns[name] for name in types})
