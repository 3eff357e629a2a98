"""The Spark job of the simulation: the pool of minimum-bias events, then one task per file.

Spark only schedules. A task writes its file under a temporary name and renames it at the end;
finished files are not made again. The content depends on the settings and the number of the file
only, so any number of tasks gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pyspark import Accumulator, SparkContext

from hep_core.input_errors import InputFileError
from hep_simulation.production import (
    SimulatedFile,
    make_file,
    make_pool_file,
    pool_files,
    process_files,
    read_record,
)
from ingestion.errors import BadFilesError
from pipeline.configuration.simulate_section import SimulateSettings


def produce(
    spark: SparkContext,
    settings: SimulateSettings,
    folder: Path,
    *,
    counted: Callable[[str, int], AbstractContextManager[Accumulator[int]]],
    num_tasks: Callable[[int], int] = lambda num_files: num_files,
) -> list[dict[str, Any]]:
    """Make all missing files; returns the records of all files, in order.

    The pool is made first, if any file is missing. Files in `folder` that these settings do not
    name are removed at the end.

    Args:
        spark: Where the tasks run.
        settings: The processes, the generator and the detector.
        folder: Folder of all files; every task can reach it.
        counted: Opens a counter of events, given its title and the number of events.
        num_tasks: Gives the number of Spark tasks for a number of files.

    Raises:
        InputFileError: Files cannot be made.
    """
    files = process_files(settings)
    pool = pool_files(settings)
    names = {file.name for file in (*pool, *files)}
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    records = {file: read_record(folder, file) for file in files}
    missing = [file for file in files if records[file] is None]

    def run(
        label: str,
        unfinished: Sequence[SimulatedFile],
        make: Callable[[SimulatedFile, SimulateSettings, Path], Any],
    ) -> list[Any]:
        """Make some files in Spark tasks by `make`; returns its results."""
        with counted(label, sum(file.events for file in unfinished)) as num_events:

            def make_or_return_error(file: SimulatedFile) -> Any:
                """The result of one file, or the error, in a task."""
                try:
                    record = make(file, settings, folder)
                except InputFileError as error:
                    # The driver raises the error. If a task did, Spark would retry it four times
                    # and hide the error in a Java trace.
                    return error
                num_events.add(file.events)
                return record

            results = []
            if unfinished:
                tasks = spark.parallelize(unfinished, num_tasks(len(unfinished)))
                results = list(tasks.map(make_or_return_error).collect())
        errors = [("", result) for result in results if isinstance(result, InputFileError)]
        BadFilesError.raise_any(errors)
        return results

    if missing:
        missing_pool = [file for file in pool if not (folder / file.name).is_file()]
        run("pile-up", missing_pool, make_pool_file)
    records.update(zip(missing, run("simulate", missing, make_file), strict=True))
    _remove_obsolete(folder, names)
    return [record for record in records.values() if record is not None]


def _remove_obsolete(folder: Path, names: set[str]) -> None:
    """Remove unfinished files of killed tasks, and files that are not among `names`.

    A version with more events left the latter. `names` are paths below `folder`, without those of
    the records.
    """
    record_names = {str(Path(name).with_suffix(".json")) for name in names}
    needed_names = names | record_names
    for path in folder.glob("*/*"):
        is_unfinished = path.name.startswith(".")
        is_output = path.suffix in {".root", ".json", ".npz"}
        is_needed = path.relative_to(folder).as_posix() in needed_names
        if (is_unfinished or is_output) and not is_needed:
            path.unlink()
