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
            folders[process.name] = Part(common_items | _process_items(process), _CODE, ())
        return folders

    def can_continue(self, folder: Path) -> bool:
        """Whether a folder holds finished files."""
        return any(folder.glob("*/*.json")) or any(folder.glob(f"{POOL}/[!.]*.npz"))

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
        sums_by_process = {
            process.name: _sum_records(records, process.name) for process in settings.processes
        }
        for name, sums in sums_by_process.items():
            cross_section = with_error(
                sums["cross_section_pb"], sums["cross_section_error_pb"], " +- "
            )
            context.say(
                f"{name}: {sums['events']} events of {sums['generated']} generated, "
                f"cross-section after the filter {cross_section} pb"
            )

        # The checks compare what was made with the config, and the files with their records.
        num_events = sum(sums["events"] for sums in sums_by_process.values())
        num_requested = sum(process.events for process in settings.processes)
        num_files = len(list(out_dir.glob("*/*.root")))
        return Result(
            summary=f"{num_events} events in {num_files} files",
            counters={
                "processes": sums_by_process,
                "content": _digest(records),
                "records": records,
            },
            checks=[
                Check(
                    "events made = events of the config",
                    num_events == num_requested,
                    f"{num_events} = {num_requested}",
                ),
                Check("files in the folder = records", num_files == len(records), f"{num_files}"),
            ],
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
    items = flat_items(process.model_copy(update={"file": None, "pythia": []}), prefix)
    items[f"{prefix}.pythia"] = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return items


def _with_content(line: str) -> str:
    """A setting of Pythia; if it names a file, a digest of the content replaces the name."""
    key_and_value = line.replace("=", " ", 1).split()
    if len(key_and_value) < 2 or key_and_value[0].lower() not in _FILE_SETTINGS:
        return line
    file = Path(key_and_value[1].strip('"'))
    return f"{key_and_value[0]} = {file_digest(file)}" if file.is_file() else line


def _digest(records: list[dict[str, Any]]) -> str:
    """One digest of the events of all files, in their order."""
    digests = [record["content"] for record in records]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


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
    weighted_sum = sum(record["cross_section_pb"] * record["generated"] for record in records)
    variance_sum = sum(
        (record["cross_section_error_pb"] * record["generated"]) ** 2 for record in records
    )
    cross_section_before = weighted_sum / generated
    error_before = variance_sum**0.5 / generated
    relative_variance = 0.0
    if cross_section_before:
        # Relative variance of the efficiency of weighted events; for weights of 1 it is
        # (1 - efficiency) / number of events that pass.
        efficiency_variance = passed_weight_squared / (efficiency * generated) ** 2 - 1 / generated
        relative_variance = (error_before / cross_section_before) ** 2
        relative_variance += max(efficiency_variance, 0.0)
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
