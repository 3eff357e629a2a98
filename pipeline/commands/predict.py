"""`predict`: scores of ROOT files without labels, one row for each entry in its order."""

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

from hep_core.input_errors import InputFileError
from hep_core.paths import expand_path
from hep_core.plugins import load_from_environment
from ingestion.errors import BadFilesError
from ingestion.file_info import FileInfo
from ingestion.kept_branches import types_of_kept_branches
from ingestion.settings import IngestSettings
from models.prediction_files import probability_branches
from pipeline.configuration.paths import folder_of_option
from pipeline.errors import ConfigError, cannot_write, full_disk_error
from pipeline.machine.spark_jobs import counted
from pipeline.run_folder import RunFolder
from pipeline.runs.model_registry import Registry
from pipeline.runs.models_on_disk import find_models
from pipeline.runs.own_folders import keeping_claims, new_folder
from pipeline.scoring import FLAGS, EventClassifier, load_classifier
from pipeline.scoring_advice import advise_on_model
from pipeline.scoring_notes import content_notes, training_note
from pipeline.terminal.progress import Bar

#: Name of the friend tree in ROOT files of scores.
TREE: Final = "predictions"
#: Columns beside the probabilities and kept branches; see `predict`.
OWN_COLUMNS: Final = ("entry", "flag", "predicted")


class FileScores(NamedTuple):
    """The scores of one file."""

    path: str
    """Path of the file of scores."""
    entries: int
    """Number of entries of the input, with or without scores."""
    flags: dict[str, int]
    """Numbers of entries by the name of their flag; names that none has are absent."""
    counts: dict[str, int]
    """Numbers of entries by step of ingest and unusual content; see `ingestion.tally`."""

    @property
    def scored(self) -> int:
        """Number of entries with scores."""
        return self.flags.get(FLAGS[0], 0)

    @property
    def reasons(self) -> str:
        """Why the other entries have no scores, in words; empty if all have some."""
        reasons = [
            f"{flag.replace('_', ' ')} {num_entries}"
            for flag, num_entries in self.flags.items()
            if flag != FLAGS[0]
        ]
        return f" ({', '.join(reasons)})" if reasons else ""


class FailedFile(NamedTuple):
    """A file whose scores could not be made."""

    name: str
    """Path of the input that cannot be read, or name of the file of scores that cannot be
    written."""
    error: InputFileError | OSError


class Scores(NamedTuple):
    """The scores of all files, in the order of the inputs."""

    files: list[FileScores]
    events_per_second: float
    """Entries of all files over the time from opening the first to writing the last."""


# Other commands run beside this one, and `clean` may remove none of the versions that it reads.
@keeping_claims()
def predict(
    run_folder: RunFolder,
    inputs: Sequence[str],
    out: Path,
    *,
    model: str | None = None,
    network: str | None = None,
    parquet: bool = False,
    keep: Sequence[str] = (),
) -> Scores:
    """Score all entries of some ROOT files, and write a file for each.

    Several files are scored by Spark, if it is installed, one task each; else in this process.

    A file of scores is a friend tree `predictions`, or Parquet, with a row for each entry. Its
    columns are `entry`, `flag` (index into FLAGS, 0 with scores), `predicted` (index of the
    likeliest class, -1 without scores), `probability_<class>` (NaN without scores), and the
    branches that are kept.

    Args:
        run_folder: Gives the model in use and Spark; all else comes from the model.
        inputs: Globs or URLs.
        out: A new folder.
        model: Training folder or ONNX file; None for the model in use.
        network: Which of several models in use.
        parquet: Whether to write Parquet.
        keep: Branches of one number per event.
    """
    model_path = _model_path(run_folder, model, network)
    classifier = load_classifier(model_path)
    score_columns = {*OWN_COLUMNS, *probability_branches(classifier.classes)}
    if clashes := sorted(score_columns.intersection(keep)):
        raise ConfigError(
            f"--keep: {', '.join(clashes)} is a column of the scores themselves. Keep other "
            "branches."
        )
    paths = [expand_path(path) for path in inputs]
    settings, infos = classifier.files(paths, run_folder.say, keep=keep)
    with advise_on_model(keeps_branches=bool(keep)):
        kept_types = types_of_kept_branches(infos, settings, keep)
    if note := training_note(classifier, infos, settings):
        run_folder.say(f"  warning: {note}")

    start = time.monotonic()
    num_events = sum(info.entries for info in infos)
    with new_folder(folder_of_option(out, "--out")) as folder:
        names = _file_names(infos, "parquet" if parquet else "root")
        jobs = [(info, folder / name) for info, name in zip(infos, names, strict=True)]
        if len(jobs) > 1 and find_spec("pyspark"):
            results = _score_on_spark(
                run_folder, model_path, settings, kept_types, jobs, num_events
            )
        else:
            results = []
            with Bar(run_folder.console, "predict", "events", num_events) as bar:
                for info, path in jobs:
                    scores = _score_file(
                        classifier, settings, kept_types, info, path, on_events=bar.add
                    )
                    results.append(scores)
        # An error removes the new folder with all scores.
        _raise_failures(results, out)
    # No division by zero, even if the clock is coarse.
    seconds = max(time.monotonic() - start, 1e-9)
    # Until here paths lead to the folder that is not renamed yet.
    files = [
        scores._replace(path=str(out / name))
        for scores, name in zip(results, names, strict=True)
        if isinstance(scores, FileScores)
    ]
    for note in content_notes([file.counts for file in files]):
        run_folder.say(f"  note: {note}")
    return Scores(files, num_events / seconds)


def _model_path(run_folder: RunFolder, model: str | None, network: str | None) -> str:
    """Return the path that the user names, else that of the model in use."""
    if model is not None:
        return expand_path(model)
    return str(Registry.model_in_use(run_folder.config.run_dir, network).folder)


def _raise_failures(results: Sequence[FileScores | FailedFile], out: Path) -> None:
    """Raise an error if some files have no scores, else do nothing.

    An error of writing comes first. All unreadable input files are named in one error.
    """
    bad_files = []
    for result in results:
        if not isinstance(result, FailedFile):
            continue
        if isinstance(result.error, OSError):
            path = out / result.name
            raise cannot_write(
                path, result.error, alternative="another folder with --out"
            ) from result.error
        bad_files.append((result.name, result.error))
    BadFilesError.raise_any(bad_files)


def _file_names(infos: Sequence[FileInfo], suffix: str) -> list[str]:
    """Name the files of scores `<input>.scores.<suffix>`.

    Inputs of different folders may have the same name: then a number tells their files apart.
    """
    names: list[str] = []
    for info in infos:
        stem = Path(info.path).name.removesuffix(".root")
        name = f"{stem}.scores.{suffix}"
        suffix_number = 2
        # The second file of a name gets the number 2.
        while name in names:
            name = f"{stem}-{suffix_number}.scores.{suffix}"
            suffix_number += 1
        names.append(name)
    return names


@lru_cache(maxsize=1)
def _cached_classifier(path: str) -> EventClassifier:
    """Load the classifier once in each Python worker of Spark, which runs several tasks.

    The worker is a new process, so it imports the plugins of the user first. Their code was checked
    where the command began; here may be copies without the files that they name.
    """
    load_from_environment()
    (model,) = find_models([path])
    return EventClassifier.from_model(model)


def _score_on_spark(
    run_folder: RunFolder,
    model_path: str,
    settings: IngestSettings,
    kept_types: Mapping[str, str],
    jobs: Sequence[tuple[FileInfo, Path]],
    num_events: int,
) -> list[FileScores | FailedFile]:
    """Score each file in a Spark task; returns the results in the order of the jobs.

    Args:
        run_folder: Gives Spark and the console.
        model_path: Training folder or ONNX file, which the workers read themselves.
        settings: How to read the files.
        kept_types: Numpy type of each branch that is copied, by name.
        jobs: Each input file, with the path of its file of scores.
        num_events: Number of all entries, for the progress bar.
    """
    with Bar(run_folder.console, "Spark", "") as bar:
        show = partial(bar, 0, 0)
        show("starting")
        inputs = [info.path for info, _ in jobs]
        spark = run_folder.spark.context(folder=jobs[0][1].parent, inputs=inputs, show=show)
    # Workers may run in another folder.
    absolute_path = str(Path(model_path).absolute())
    try:
        with (
            Bar(run_folder.console, "predict", "events") as bar,
            counted(spark, bar, num_events) as num_events_done,
        ):

            def run(job: tuple[FileInfo, Path]) -> FileScores | FailedFile:
                """Score one file in a Python worker; this function is sent to it."""
                info, path = job
                classifier = _cached_classifier(absolute_path)
                return _score_file(
                    classifier, settings, kept_types, info, path, on_events=num_events_done.add
                )

            num_tasks = run_folder.spark.num_tasks(len(jobs))
            return list(spark.parallelize(jobs, num_tasks).map(run).collect())
    finally:
        run_folder.spark.stop()


def _score_file(
    classifier: EventClassifier,
    settings: IngestSettings,
    kept_types: Mapping[str, str],
    info: FileInfo,
    path: Path,
    *,
    on_events: Callable[[int], object],
) -> FileScores | FailedFile:
    """Write the scores of a file; returns how many entries have which flag.

    An error of the input or the disk is returned as a result. If a task raised it, Spark would run
    the task again. `on_events` is called with the size of each batch.
    """
    flag_counts: Counter[int] = Counter()
    counts: Counter[str] = Counter()
    try:
        with _writer(path, classifier.classes, kept_types) as write:
            # Entries come in batches, so memory does not grow with the file.
            for raw, scored in classifier.entries(info, settings):
                write(classifier.columns(raw, scored) | raw.pass_through)
                flag_counts.update(scored.flag.tolist())
                counts.update(scored.counts)
                on_events(raw.num_events)
    except InputFileError as error:
        return FailedFile(info.path, error)
    except Exception as error:
        # A full disk reaches us in several forms; any other error is raised.
        disk_error = full_disk_error(error)
        if disk_error is None:
            raise
        return FailedFile(path.name, disk_error)
    flags = {name: flag_counts[flag] for flag, name in enumerate(FLAGS) if flag_counts[flag]}
    return FileScores(str(path), info.entries, flags, dict(counts))


#: Columns of a batch by name, each one number per entry.
_Columns = Mapping[str, NDArray[Any]]


@contextmanager
def _writer(
    path: Path, classes: Sequence[str], kept_types: Mapping[str, str]
) -> Iterator[Callable[[_Columns], None]]:
    """Open a new file and yield a function that appends columns to it.

    The ending of the path chooses Parquet or ROOT. The metadata of Parquet, or the title of the
    tree, give the names of classes and flags as JSON.

    Args:
        path: The new file.
        classes: Names of the classes.
        kept_types: Numpy type of each branch that is copied, by name.
    """
    types = {"entry": "int64", "flag": "int8", "predicted": "int64"}
    types |= dict.fromkeys(probability_branches(classes), "float32")
    types |= kept_types
    metadata = {"classes": list(classes), "flags": list(FLAGS)}
    if path.suffix == ".parquet":
        fields = [(name, pa.from_numpy_dtype(dtype)) for name, dtype in types.items()]
        json_metadata = {key: json.dumps(names) for key, names in metadata.items()}
        schema = pa.schema(fields).with_metadata(json_metadata)
        with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as file:

            def write_rows(columns: _Columns) -> None:
                """Append a batch to the Parquet file, as a row group."""
                table = pa.table({name: columns[name] for name in types}, schema=schema)
                file.write_table(table)

            yield write_rows
        return
    with uproot.recreate(path) as file:
        tree = file.mktree(TREE, types, title=json.dumps(metadata))

        def extend_tree(columns: _Columns) -> None:
            """Append a batch to the tree."""
            tree.extend({name: columns[name] for name in types})

        yield extend_tree
