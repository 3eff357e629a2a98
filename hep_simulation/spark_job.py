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

from pyspark import Accumulator, SparkContext

from hep_core.input_errors import InputFileError
from hep_simulation.production import files_of, finished, make_file, make_pool_part, pool_of
from ingestion.errors import BadFilesError
from pipeline.configuration.simulate_section import SimulateSettings


def produce(
    spark: SparkContext,
    settings: SimulateSettings,
    folder: Path,
    *,
    counted: Callable[[str, int], AbstractContextManager[Accumulator[int]]],
    num_tasks: Callable[[int], int] = lambda number: number,
) -> list[dict[str, Any]]:
    """Make all files that are missing; returns the records of all, in order.

    `counted` gives a counter of events for the pool, then for the files: it takes their name and the number of events.
    """
    parts, files = pool_of(settings), files_of(settings)
    names = {*(part.name for part in parts), *(file.name for file in files)}
    for name in {Path(each).parent for each in names}:
        (folder / name).mkdir(parents=True, exist_ok=True)
    there = {file: finished(folder, file) for file in files}
    missing = [file for file, record in there.items() if record is None]

    def run(label: str, work: Sequence[Any], make: Callable[[Any], Any]) -> list[Any]:
        with counted(label, sum(piece.events for piece in work)) as done:

            def make_or_say(piece: Any) -> Any:
                try:
                    made = make(piece)
                except InputFileError as problem:
                    # The driver raises it: from here, Spark would retry it four times and bury it in a Java trace.
                    return problem
                done.add(piece.events)
                return made

            results = (
                spark.parallelize(work, num_tasks(len(work))).map(make_or_say).collect()
                if work
                else []
            )
        BadFilesError.raise_any(
            [("", each) for each in results if isinstance(each, InputFileError)]
        )
        return list(results)

    if missing:
        left = [part for part in parts if not (folder / part.name).is_file()]
        run("pile-up", left, lambda part: make_pool_part(part, settings, folder))
    found = run("simulate", missing, lambda file: make_file(file, settings, folder))
    made = dict(zip(missing, found, strict=True))
    _remove_remains(folder, names)
    return [record or made[file] for file, record in there.items()]


def _remove_remains(folder: Path, names: set[str]) -> None:
    """Remove unfinished files of killed tasks, and files of a larger number of events."""
    kept = {*names, *(str(Path(name).with_suffix(".json")) for name in names)}
    for path in folder.glob("*/*"):
        is_made_here = path.name.startswith(".") or path.suffix in {".root", ".json", ".npz"}
        if is_made_here and path.relative_to(folder).as_posix() not in kept:
            path.unlink()
