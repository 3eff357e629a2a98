"""The Spark job of the simulation: the pool of minimum-bias events, then one task per file.

Spark only schedules. A task writes its file under a temporary name and renames it at the end; what is there already is
not made again. The content depends on the settings and the number of the file only, so any number of tasks gives the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark import Accumulator, SparkContext

from ingestion.errors import BadFilesError, IngestionError
from ingestion.generation.production import (
    PoolPart,
    SimulatedFile,
    files_of,
    finished,
    make_file,
    make_pool_part,
    pool_of,
)
from ingestion.generation.settings import SimulateSettings


def produce(
    spark: SparkContext,
    settings: SimulateSettings,
    folder: Path,
    *,
    done: Accumulator[int],
    num_tasks: Callable[[int], int] = lambda number: number,
) -> list[dict[str, Any]]:
    """Make all files that are missing; returns the records of all, in order.

    Args:
        spark: The running context.
        settings: Processes, events, pile-up and seed.
        folder: Folder of the version, which every task can reach.
        done: Counts events as they are made, those that are there already included.
        num_tasks: Number of Spark tasks for a number of files; by default one each, since a file takes long.

    Raises:
        IngestionError: A file cannot be made.
    """
    place, parts, files = str(folder), pool_of(settings), files_of(settings)
    names = {*(part.name for part in parts), *(file.name for file in files)}
    for name in {Path(each).parent for each in names}:
        (folder / name).mkdir(parents=True, exist_ok=True)
    there = {file: finished(folder, file) for file in files}
    done.add(sum(file.events for file, record in there.items() if record))

    def pool_part(part: PoolPart) -> IngestionError | None:
        try:
            make_pool_part(part, settings, Path(place))
        except IngestionError as problem:
            return problem
        return None

    def whole_file(file: SimulatedFile) -> dict[str, Any] | IngestionError:
        try:
            return make_file(file, settings, Path(place), on_events=done.add)
        except IngestionError as problem:
            # The driver raises it: from here, Spark would retry it four times and bury it in a Java trace.
            return problem

    missing = [file for file, record in there.items() if record is None]
    if missing:
        _run(spark, [part for part in parts if not (folder / part.name).is_file()], pool_part, num_tasks)
    made = dict(zip(missing, _run(spark, missing, whole_file, num_tasks), strict=True))
    _remove_remains(folder, names)
    return [record or made[file] for file, record in there.items()]


def _run(
    spark: SparkContext, work: Sequence[Any], make: Callable[[Any], Any], num_tasks: Callable[[int], int]
) -> list[Any]:
    if not work:
        return []
    results = spark.parallelize(work, num_tasks(len(work))).map(make).collect()
    BadFilesError.raise_any([each for each in results if isinstance(each, IngestionError)])
    return list(results)


def _remove_remains(folder: Path, names: set[str]) -> None:
    """Remove unfinished files of killed tasks, and files of a larger number of events."""
    kept = {*names, *(str(Path(name).with_suffix(".json")) for name in names)}
    for path in folder.glob("*/*"):
        is_made_here = path.name.startswith(".") or path.suffix in {".root", ".json", ".npz"}
        if is_made_here and path.relative_to(folder).as_posix() not in kept:
            path.unlink()
