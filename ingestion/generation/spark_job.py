"""The Spark job of the simulation: the pool of minimum-bias events, then one task per file.

Spark only schedules. A task writes its file under a temporary name and renames it at the end; what is there already is
not made again. The content depends on the settings and the number of the file only, so any number of tasks gives the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from ingestion.errors import BadFilesError, IngestionError
from ingestion.generation.production import events_made, files_of, finished, make_file, make_pool_part, pool_of
from ingestion.generation.settings import SimulateSettings


def produce(
    spark: SparkContext,
    settings: SimulateSettings,
    folder: Path,
    *,
    watch: Callable[[str, int, Callable[[], int]], AbstractContextManager[None]],
    num_tasks: Callable[[int], int] = lambda number: number,
) -> list[dict[str, Any]]:
    """Make all files that are missing; returns the records of all, in order.

    `watch` shows progress during the pool, then during the files: it takes their name, the number of events, and a
    function that counts those that are made, since Spark's own counters know ended tasks only.
    """
    parts, files = pool_of(settings), files_of(settings)
    names = {*(part.name for part in parts), *(file.name for file in files)}
    for name in {Path(each).parent for each in names}:
        (folder / name).mkdir(parents=True, exist_ok=True)
    there = {file: finished(folder, file) for file in files}
    missing = [file for file, record in there.items() if record is None]
    # Killed tasks left notes about their progress.
    _remove_remains(folder, names, "*/.*")
    if missing:
        left = [part for part in parts if not (folder / part.name).is_file()]
        with watch("pile-up", sum(part.events for part in parts), lambda: events_made(folder, parts)):
            _run(spark, left, lambda part: make_pool_part(part, settings, folder), num_tasks)
    with watch("simulate", sum(file.events for file in files), lambda: events_made(folder, files)):
        found = _run(spark, missing, lambda file: make_file(file, settings, folder), num_tasks)
    made = dict(zip(missing, found, strict=True))
    _remove_remains(folder, names, "*/*")
    return [record or made[file] for file, record in there.items()]


def _run(
    spark: SparkContext, work: Sequence[Any], make: Callable[[Any], Any], num_tasks: Callable[[int], int]
) -> list[Any]:
    def make_or_say(piece: Any) -> Any:
        try:
            return make(piece)
        except IngestionError as problem:
            # The driver raises it: from here, Spark would retry it four times and bury it in a Java trace.
            return problem

    if not work:
        return []
    results = spark.parallelize(work, num_tasks(len(work))).map(make_or_say).collect()
    BadFilesError.raise_any([("", each) for each in results if isinstance(each, IngestionError)])
    return list(results)


def _remove_remains(folder: Path, names: set[str], pattern: str) -> None:
    """Remove unfinished files of killed tasks, and files of a larger number of events."""
    kept = {*names, *(str(Path(name).with_suffix(".json")) for name in names)}
    for path in folder.glob(pattern):
        is_made_here = path.name.startswith(".") or path.suffix in {".root", ".json", ".npz"}
        if is_made_here and path.relative_to(folder).as_posix() not in kept:
            path.unlink()
