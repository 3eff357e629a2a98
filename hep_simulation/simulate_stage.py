"""The stage that makes ROOT files of events: generator, pile-up and a fast detector."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hep_core.integrity import file_digest
from models.evaluation.rounding import with_error
from pipeline.config import Config
from pipeline.configuration.keys import flat_items
from pipeline.configuration.simulate_section import POOL, ProcessSettings
from pipeline.machine.doctor import Need
from pipeline.machine.spark_jobs import counted
from pipeline.stages.base import Check, Context, Part, Result, Stage

if TYPE_CHECKING:
    from pyspark import Accumulator

#: The module that makes the files; code that it imports makes a part stale.
_CODE: Final = ("hep_simulation.production",)
#: Settings of Pythia that name a file, in lower case as Pythia compares them.
_FILE_SETTINGS: Final = frozenset({"beams:lhef", "beams:lhefheader", "slha:file"})


class Simulate(Stage):
    """Makes the events of all processes; see `hep_simulation`.

    Each process is a part: a process with other settings leaves the files of the others as they
    are, and more events of a process only add files.
    """

    name: ClassVar[str] = "simulate"
    needs: ClassVar[tuple[Need, ...]] = (Need.SPARK,)
    wanted_by: ClassVar[str] = "simulate.processes"

    def is_wanted(self, config: Config) -> bool:
        """Whether the config names processes."""
        return bool(config.simulate.processes)

    def config_items(self, config: Config) -> dict[str, Any]:
        """The numbers of events by process; all other settings belong to the parts."""
        return {
            f"simulate.{process.name}.events": process.events
            for process in config.simulate.processes
        }

    def parts(self, config: Config) -> dict[str, Part]:
        """The pool of minimum-bias events, and each process, by name.

        A part has the settings on which its files depend, by key.
        """
        settings = config.simulate
        pool_items = {
            "simulate.seed": settings.seed,
            "simulate.energy_tev": settings.energy_tev,
            "simulate.pile_up.pool": settings.pile_up.pool,
        }
        common_items = {
            **pool_items,
            **flat_items(settings.pile_up, "simulate.pile_up"),
            **flat_items(settings.lepton_filter, "simulate.lepton_filter"),
            "simulate.events_per_file": settings.events_per_file,
        }
        folders = {}
        if settings.pile_up.mean:
            folders[POOL] = Part(pool_items, _CODE, ())
        for process in settings.processes:
            items = common_items | _process_items(process)
            folders[process.name] = Part(items, _CODE, ())
        return folders

    def can_continue(self, folder: Path) -> bool:
        """Whether a folder holds finished files."""
        has_record = any(folder.glob("*/*.json"))
        has_pool_file = any(folder.glob(f"{POOL}/[!.]*.npz"))
        return has_record or has_pool_file

    def run(self, context: Context) -> Result:
        """Make the missing files, each with its record, in Spark tasks.

        The counters have the sums of each process, from the records of its files.
        """
        from hep_simulation.pythia_setup import require_packages
        from hep_simulation.spark_job import produce

        require_packages()
        settings = context.config.simulate
        spark = context.start_spark()

        @contextmanager
        def counter_on_bar(label: str, num_events: int) -> Iterator[Accumulator[int]]:
            """A counter of events for tasks, shown as a progress bar."""
            with context.bar(label, "events") as bar, counted(spark, bar, num_events) as counter:
                yield counter

        # An absolute path is also valid in executors, whose current folder may differ.
        out_dir = context.out_dir.absolute()
        records = produce(spark, settings, out_dir, counted=counter_on_bar)
        sums_by_process = {}
        for process in settings.processes:
            sums = _sum_records(records, process.name)
            sums_by_process[process.name] = sums
            context.say(_summary_line(process.name, sums))

        # The checks compare what was made with the config, and the files with their records.
        num_events = sum(sums["events"] for sums in sums_by_process.values())
        num_requested = sum(process.events for process in settings.processes)
        num_files = len(list(out_dir.glob("*/*.root")))
        events_check = Check(
            "events made = events of the config",
            num_events == num_requested,
            f"{num_events} = {num_requested}",
        )
        files_check = Check(
            "files in the folder = records", num_files == len(records), f"{num_files}"
        )
        counters = {
            "processes": sums_by_process,
            "content": _digest(records),
            "records": records,
        }
        return Result(
            summary=f"{num_events} events in {num_files} files",
            counters=counters,
            checks=[events_check, files_check],
        )


#: The stage, which the entry point of the package names.
SIMULATE: Final = Simulate()


def _process_items(process: ProcessSettings) -> dict[str, Any]:
    """Settings of a process by key; Pythia's are a digest.

    The content of files that Pythia reads counts, not their names.
    """
    prefix = f"simulate.{process.name}"
    # All lines of settings, also those of the process's own file, are in one digest.
    lines = [_with_content(line) for line in process.lines()]
    without_lines = process.model_copy(update={"file": None, "pythia": []})
    items = flat_items(without_lines, prefix)
    items[f"{prefix}.pythia"] = _digest_of_lines(lines)
    return items


def _with_content(line: str) -> str:
    """A setting of Pythia; if it names a file, a digest of the content replaces the name."""
    key_and_value = line.replace("=", " ", 1).split()
    if len(key_and_value) < 2:
        return line
    key, text = key_and_value[:2]
    file = Path(text.strip('"'))
    if key.lower() in _FILE_SETTINGS and file.is_file():
        return f"{key} = {file_digest(file)}"
    return line


def _digest(records: list[dict[str, Any]]) -> str:
    """One digest of the events of all files, in their order."""
    digests = [record["content"] for record in records]
    return _digest_of_lines(digests)


def _digest_of_lines(lines: list[str]) -> str:
    """One digest of some lines of text."""
    text = "\n".join(lines)
    return hashlib.sha256(text.encode()).hexdigest()


def _summary_line(process: str, sums: dict[str, Any]) -> str:
    """The line about a process for the terminal, from the sums of its records."""
    cross_section = with_error(sums["cross_section_pb"], sums["cross_section_error_pb"], " +- ")
    return (
        f"{process}: {sums['events']} events of {sums['generated']} generated, "
        f"cross-section after the filter {cross_section} pb"
    )


def _sum_records(records: list[dict[str, Any]], process: str) -> dict[str, Any]:
    """Add up the records of all files of a process.

    The cross-section before the filter is the mean over the files, weighted by their numbers of
    generated events. Times the filter efficiency it is that after the filter; its error has both
    uncertainties.
    """
    records = [record for record in records if record["process"] == process]
    generated = sum(record["generated"] for record in records)
    passed_weight = sum(record["passed_weight"] for record in records)
    passed_weight_squared = sum(record["passed_weight_squared"] for record in records)
    efficiency = passed_weight / generated

    # Each file has its own estimate; those of more generated events are better.
    weighted_cross_sections = [
        record["cross_section_pb"] * record["generated"] for record in records
    ]
    weighted_errors = [record["cross_section_error_pb"] * record["generated"] for record in records]
    weighted_sum = sum(weighted_cross_sections)
    variance_sum = sum(error**2 for error in weighted_errors)
    cross_section_before = weighted_sum / generated
    error_before = variance_sum**0.5 / generated
    relative_variance = 0.0
    if cross_section_before:
        # Relative variance of the efficiency of weighted events; for weights of 1 it is
        # (1 - efficiency) / number of events that pass.
        variance_of_passed = passed_weight_squared / (efficiency * generated) ** 2
        efficiency_variance = variance_of_passed - 1 / generated
        relative_error_before = error_before / cross_section_before
        relative_variance = relative_error_before**2 + max(efficiency_variance, 0.0)
    cross_section = cross_section_before * efficiency
    return {
        "files": len(records),
        "events": sum(record["events"] for record in records),
        "generated": generated,
        "passed_weight": passed_weight,
        "filter_efficiency": efficiency,
        "cross_section_before_filter_pb": cross_section_before,
        "cross_section_pb": cross_section,
        "cross_section_error_pb": cross_section * relative_variance**0.5,
    }
