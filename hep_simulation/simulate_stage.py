"""Generator, pile-up and a fast detector to ROOT files."""

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
from pipeline.machine.doctor import Need
from pipeline.machine.spark_session import counted
from pipeline.stages.base import Check, Context, Part, Result, Stage

if TYPE_CHECKING:
    from pyspark import Accumulator

_CODE: Final = ("hep_simulation.production",)
_POOL: Final = "pile-up"
#: Settings of Pythia that name a file, in lower case as Pythia compares them.
_FILES: Final = frozenset({"beams:lhef", "beams:lhefheader", "slha:file"})


class Simulate(Stage):
    """Makes the events of all processes; see `hep_simulation`.

    Each process is a part: a process with other settings leaves the files of the others as they are, and more events of
    a process only add files.
    """

    name: ClassVar[str] = "simulate"
    needs: ClassVar[tuple[Need, ...]] = (Need.SPARK,)
    wanted_by: ClassVar[str] = "simulate.processes"

    def is_wanted(self, config: Config) -> bool:
        """Whether the config names processes."""
        return bool(config.simulate.processes)

    def config_items(self, config: Config) -> dict[str, Any]:
        """The numbers of events; all else belongs to the parts."""
        return {
            f"simulate.{process.name}.events": process.events
            for process in config.simulate.processes
        }

    def parts(self, config: Config) -> dict[str, Part]:
        """The pool of minimum-bias events, and each process."""
        settings = config.simulate
        pool = {"simulate.seed": settings.seed, "simulate.energy_tev": settings.energy_tev}
        pool |= {"simulate.pile_up.pool": settings.pile_up.pool}
        common = {
            **pool,
            **flat_items(settings.pile_up, "simulate.pile_up"),
            **flat_items(settings.lepton_filter, "simulate.lepton_filter"),
            "simulate.events_per_file": settings.events_per_file,
        }
        found = {_POOL: Part(pool, _CODE, ())} if settings.pile_up.mean else {}
        for process in settings.processes:
            # The content of files counts, not their names.
            lines = hashlib.sha256(
                "\n".join(map(_with_content, process.lines())).encode()
            ).hexdigest()
            own = flat_items(
                process.model_copy(update={"file": None, "pythia": []}), f"simulate.{process.name}"
            )
            found[process.name] = Part(
                {**common, **own, f"simulate.{process.name}.pythia": lines}, _CODE, ()
            )
        return found

    def can_continue(self, folder: Path) -> bool:
        """Whether a folder holds finished files."""
        return any(folder.glob("*/*.json")) or any(folder.glob(f"{_POOL}/[!.]*.npz"))

    def run(self, context: Context) -> Result:
        """Make the missing files, each with its record."""
        from hep_simulation.generator import require_packages
        from hep_simulation.production import files_of
        from hep_simulation.spark_job import produce

        require_packages()
        settings = context.config.simulate
        total = sum(file.events for file in files_of(settings))
        spark = context.start_spark()

        @contextmanager
        def shown(label: str, number: int) -> Iterator[Accumulator[int]]:
            with context.bar(label, "events") as bar, counted(spark, bar, number) as done:
                yield done

        records = produce(spark, settings, context.out_dir.absolute(), counted=shown)
        processes = {process.name: _summed(records, process.name) for process in settings.processes}
        for name, each in processes.items():
            cross_section = with_error(
                each["cross_section_pb"], each["cross_section_error_pb"], " +- "
            )
            context.say(
                f"{name}: {each['events']} events of {each['generated']} generated, cross-section after the filter "
                f"{cross_section} pb"
            )
        made = sum(each["events"] for each in processes.values())
        roots = sorted(context.out_dir.glob("*/*.root"))
        return Result(
            summary=f"{made} events in {len(roots)} files",
            counters={"processes": processes, "content": _digest(records), "records": records},
            checks=[
                Check("events made = events of the config", made == total, f"{made} = {total}"),
                Check("files in the folder = records", len(roots) == len(records), f"{len(roots)}"),
            ],
        )


#: The entry point names it.
SIMULATE: Final = Simulate()


def _with_content(line: str) -> str:
    """A setting of Pythia; of one that names a file, a digest of the content in place of the name."""
    words = line.replace("=", " ", 1).split()
    if len(words) < 2 or words[0].lower() not in _FILES:
        return line
    file = Path(words[1].strip('"'))
    return f"{words[0]} = {file_digest(file)}" if file.is_file() else line


def _digest(records: list[dict[str, Any]]) -> str:
    """One for the events of all files, in their order."""
    return hashlib.sha256("\n".join(record["content"] for record in records).encode()).hexdigest()


def _summed(records: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Numbers of events, and the cross-section after the filter, of all files of a process."""
    own = [record for record in records if record["process"] == name]
    generated = sum(record["generated"] for record in own)
    passed_weight = sum(record["passed_weight"] for record in own)
    efficiency = passed_weight / generated
    # Each file has its own estimate; those of more generated events are better.
    before = sum(record["cross_section_pb"] * record["generated"] for record in own) / generated
    error = (
        sum((record["cross_section_error_pb"] * record["generated"]) ** 2 for record in own) ** 0.5
        / generated
    )
    # Of the share of events with weights; (1 - efficiency) / number if all weights are 1.
    squares = sum(record["passed_weight_squared"] for record in own) / (efficiency * generated) ** 2
    relative = (error / before) ** 2 + max(squares - 1 / generated, 0.0) if before else 0.0
    return {
        "files": len(own),
        "events": sum(record["events"] for record in own),
        "generated": generated,
        "passed_weight": passed_weight,
        "filter_efficiency": efficiency,
        "cross_section_before_filter_pb": before,
        "cross_section_pb": before * efficiency,
        "cross_section_error_pb": before * efficiency * relative**0.5,
    }
