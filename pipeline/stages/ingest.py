"""ROOT files to events Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.console import Console

from hep_core.storage import file_sizes, make_folder, read_footers
from ingestion.errors import group_messages
from ingestion.notes import notes
from ingestion.tally import WRAPPED_AZIMUTHS, sum_counts, sums_by_sample
from pipeline.config import Config
from pipeline.configuration.keys import flat_items
from pipeline.machine.doctor import Need
from pipeline.machine.spark_jobs import counted
from pipeline.runs.counters import IngestCounters
from pipeline.runs.outputs import OutputFile
from pipeline.runs.provenance import package_versions
from pipeline.runs.version import Version
from pipeline.stages.base import Check, Context, Result, Stage, StageInputs
from pipeline.stages.input_files import files_read, files_skipped, identities
from pipeline.terminal.progress import Bar

if TYPE_CHECKING:
    from ingestion.file_info import BadFile, FileInfo
    from ingestion.range_output import EventsPart
    from ingestion.spark_job import EarlierParts, IngestResult


_JOB: Final = "ingestion.spark_job"
#: What a sample states about how its files are read.
_READ_BY: Final = ("label", "label_by", "weight", "weights", "tree", "branch_map")


class Ingest(Stage):
    """Reads the new ROOT files of all samples; see `ingestion.spark_job`."""

    name: ClassVar[str] = "ingest"
    #: Nothing of the version: the simulated files are inputs of their own, by the UUID of their
    #: content.
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {"simulate": ()}
    uses_storage: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = (Need.SPARK,)

    def upstream_of(self, config: Config) -> tuple[str, ...]:
        """Return the stage `simulate` if the config simulates samples, else no stage."""
        return ("simulate",) if config.simulate.processes else ()

    def config_items(self, config: Config) -> dict[str, Any]:
        """Return the config values that change the ingested events.

        These are the section `ingest` and what each sample states about how its files are read.
        Numbers that only scale its weights, such as the cross-section, are left out.
        """
        items = flat_items(config.ingest, "ingest")
        for sample in config.samples:
            for key in _READ_BY:
                items[f"samples.{sample.name}.{key}"] = getattr(sample, key)
            # A text names a branch, or a bin of a histogram, that has to be read.
            if isinstance(sample.sum_of_weights, str):
                items[f"samples.{sample.name}.sum_of_weights"] = sample.sum_of_weights
        items["features.particles"] = config.features.particles
        return items

    def find_inputs(self, config: Config, current: Version | None, console: Console) -> StageInputs:
        """Find and check the ROOT files of all samples, and identify them by their UUIDs.

        A file that was only moved is therefore the same input. Files that the version in use has
        checked in the same way, and that are unchanged, are not opened again. The `details` of the
        result are an `ingestion.files.Inventory`.
        """
        from ingestion.changes import carry_over_revisions
        from ingestion.files import find_input_files

        def say(text: str) -> None:
            console.print(f"  {text}", highlight=False, markup=False)

        with Bar(console, "checking files", "files") as bar:
            inventory = find_input_files(
                config.samples,
                config.ingest,
                say,
                known=self._known_files(config, current),
                on_file=bar,
                needs_particles=config.features.particles,
            )
        # The cross-section of simulated events is that of those in the files.
        simulated_dir = (config.run_dir / "simulate").absolute()
        infos = []
        for info in inventory.infos:
            is_simulated = Path(info.path).absolute().is_relative_to(simulated_dir)
            if is_simulated:
                infos.append(info._replace(skim=""))
            else:
                infos.append(info)
        infos = carry_over_revisions(infos, files_read(current))
        # With their current paths and times the next run need not check them again.
        records = [info._asdict() for info in infos]
        inputs = identities(infos, inventory.bad)
        return StageInputs(inputs, inventory._replace(infos=infos), records)

    def _known_files(
        self, config: Config, current: Version | None
    ) -> dict[str, FileInfo | BadFile]:
        """Return the files that the version in use has checked, by path; they need no new check.

        There are none if code or settings of the reading have changed. Files that were skipped as
        damaged are among them only if the Python packages are the same too.
        """
        # A change of the branches or the tree requires a new check of the files.
        if current is None or not current.ran_same_code(_JOB):
            return {}
        if not _has_same_settings(config, current):
            return {}
        checked: dict[str, FileInfo | BadFile] = {info.path: info for info in files_read(current)}
        # Other packages may read what those of the time could not.
        if current.manifest.packages == package_versions():
            for file in files_skipped(current):
                if self._is_read_alike(file.sample, config, current):
                    checked[file.path] = file
        return checked

    def _is_read_alike(self, sample: str, config: Config, current: Version) -> bool:
        """Return whether a version read a sample by the labels, weights and branches of now."""
        recorded, present = current.made_from.config, self.config_items(config)
        keys = [f"samples.{sample}.{key}" for key in _READ_BY]
        return all(
            key in recorded and key in present and recorded[key] == present[key] for key in keys
        )

    def run(self, context: Context) -> Result:
        """Read new and changed ROOT files on Spark, and take over the events of unchanged ones.

        Events that pass the thresholds become Parquet. The checks compare the numbers of entries,
        events and rows.
        """
        from ingestion.spark_job import ingest

        config, inventory = context.config, context.inputs.details
        infos: list[FileInfo] = inventory.infos
        earlier = _earlier_parts(context, infos)
        events_dir = context.data_dir / "events"
        make_folder(events_dir)
        spark = context.start_spark(info.path for info in infos)
        # The bar counts the entries of the files that are read now.
        reused = {} if earlier is None else earlier.parts
        num_entries = sum(info.entries for info in infos if info.uuid not in reused)
        with context.bar("ingest", "events") as bar, counted(spark, bar, num_entries) as counter:
            result = ingest(
                spark,
                infos,
                config.samples,
                config.ingest,
                events_dir,
                done=counter,
                num_tasks=context.spark.num_tasks,
                earlier=earlier,
                bad=inventory.bad,
            )
        _check_simulated_files(context, result.infos)
        _print_notes(context, infos, result)
        return _result(context, result)


def _print_notes(context: Context, infos: list[FileInfo], result: IngestResult) -> None:
    """Print remarks on the files, on unusual events, and on files that were skipped."""
    if any(info.lacks_particles and info.entries for info in infos):
        context.say(
            "note: The files have no particles: the isolations of leptons are 0, and no lepton "
            "fails their cut."
        )
    unread_files = [*result.bad, *context.inputs.details.waiting]
    steps_by_sample = sums_by_sample(result.parts)["samples"]
    for sentence in notes(infos, context.config.samples, steps_by_sample, unread_files):
        context.say(f"note: {sentence}")
    for message in group_messages((file.path, file.message) for file in result.bad):
        context.say(f"skipped: {message}")


def _earlier_parts(context: Context, infos: list[FileInfo]) -> EarlierParts | None:
    """Return the parts of the version in use that this run takes over; None if there are none.

    A part is the output of a range of entries of a ROOT file. A file's parts are taken over if
    code and settings are the same, the file is unchanged, it is read for the same sample in the
    same way, and none of its parts is missing or damaged.

    Args:
        context: The context of the stage.
        infos: The ROOT files of now.
    """
    from ingestion.changes import is_unchanged
    from ingestion.range_output import EventsPart
    from ingestion.spark_job import EarlierParts

    current = context.current
    if current is None or not current.ran_same_code(_JOB):
        return None
    if not _has_same_settings(context.config, current):
        return None
    earlier_infos = {info.uuid: info for info in files_read(current)}
    unchanged = set()
    for info in infos:
        earlier_info = earlier_infos.get(info.uuid)
        if earlier_info is not None and is_unchanged(info, earlier_info):
            keys = ("sample", *_READ_BY)
            if all(getattr(info, key) == getattr(earlier_info, key) for key in keys):
                unchanged.add(info.uuid)
    parts: dict[str, list[EventsPart]] = {}
    for record in current.counters(IngestCounters).parts:
        part = EventsPart(**record.model_dump())
        # One damaged part means that its whole ROOT file is read again.
        if {f"events/{part.name}", f"keys/{part.keys_name}"} & context.missing:
            unchanged.discard(part.file_uuid)
        parts.setdefault(part.file_uuid, []).append(part)
    intact_parts = {uuid: parts[uuid] for uuid in parts if uuid in unchanged}
    return EarlierParts(current.folder / "events", intact_parts)


def _check_simulated_files(context: Context, infos: Iterable[FileInfo]) -> None:
    """Refuse simulated files that were read and are not what `simulate` wrote.

    Their digests are compared, which ingest has computed while it read the files.

    Raises:
        DamagedOutputError: There is such a file.
    """
    if "simulate" not in context.upstream:
        return
    simulated = context.upstream["simulate"]
    files = {str(file.location(simulated.folder).absolute()): file for file in simulated.files}
    for info in infos:
        file = files.get(str(Path(info.path).absolute()))
        if file and info.digest and info.digest != file.digest:
            raise simulated.damage_of(file)


def _has_same_settings(config: Config, current: Version) -> bool:
    """Return whether a version was made with the trees, branches and thresholds of the config.

    The number of entries per task has to be the same too: it sets the ranges of the parts.
    """
    if current.config.ingest.get("entries_per_task") != config.ingest.entries_per_task:
        return False
    recorded = current.made_from.config
    present = {
        **flat_items(config.ingest, "ingest"),
        "features.particles": config.features.particles,
    }
    return all(recorded.get(key) == value for key, value in present.items())


def _result(context: Context, result: IngestResult) -> Result:
    """Return the result of the stage, with its counters, checks and the line for the terminal.

    The checks compare numbers of entries in the files, of kept and rejected events, of written
    files and of their rows.
    """
    steps = sum_counts(result.parts).counts
    num_rejected = sum(count for step, count in steps.items() if step.startswith("rejected_"))
    # Each entry of a file becomes an event or is rejected for one reason.
    num_accounted = steps["events"] + num_rejected
    num_entries = sum(info.entries for info in result.infos)
    events_dir = context.data_dir / "events"
    # A part without any event has no file, and then no name.
    parts = [part for part in result.parts if part.name]
    new_names = {part.name for part in parts if not _is_taken_over(part, context)}
    footers = read_footers([part.file(events_dir) for part in parts])
    num_rows = sum(footer.num_rows for footer in footers)
    return Result(
        summary=_summary(result, steps),
        counters={
            **sums_by_sample(result.parts),
            "generated": result.generated,
            "files_read": result.num_read,
            "bad_files": [file._asdict() for file in result.bad],
            "waiting_files": [file._asdict() for file in context.inputs.details.waiting],
            "parts": [part._asdict() for part in result.parts],
        },
        checks=[
            Check(
                "entries read = entries in the files",
                steps["entries"] == num_entries,
                f"{steps['entries']} = {num_entries}",
            ),
            Check(
                "entries = events + rejections",
                num_accounted == steps["entries"],
                f"{steps['entries']} = {num_accounted}",
            ),
            Check(
                "files in the folder = parts",
                file_sizes(events_dir).keys() == new_names,
                f"{len(new_names)}",
            ),
            Check(
                "rows in the Parquet = events",
                num_rows == steps["events"],
                f"{num_rows} = {steps['events']}",
            ),
        ],
        inputs=[info._asdict() for info in result.infos],
        inputs_read=identities(result.infos, result.bad),
        digests={f"events/{part.name}": part.digest for part in parts},
        taken_over=_taken_over_files(context, result),
    )


def _summary(result: IngestResult, steps: Mapping[str, int]) -> str:
    """Return the line for the terminal.

    Args:
        result: What was read.
        steps: Numbers of events by step, over all samples.
    """
    num_files, num_events = len(result.infos), steps["events"]
    phrases = [f"{num_files} files, {steps['entries']} entries, {num_events} events kept"]
    # A file without entries has nothing to read, so it is neither read nor reused.
    num_reused = sum(info.entries > 0 for info in result.infos) - result.num_read
    if num_reused > 0:
        phrases.append(f"{result.num_read} files read, {num_reused} reused")
    if steps[WRAPPED_AZIMUTHS]:
        phrases.append(f"azimuths of {steps[WRAPPED_AZIMUTHS]} events wrapped to [-π, π]")
    if steps["rejected_copy"]:
        phrases.append(f"{steps['rejected_copy']} copies left out")
    if result.bad:
        phrases.append(f"{len(result.bad)} bad files skipped")
    return "; ".join(phrases)


def _is_taken_over(part: EventsPart, context: Context) -> bool:
    """Return whether a part lies on object storage in the folder of an earlier version.

    Local parts are linked or copied into the new version, so none of them does.
    """
    return part.lies_in not in {"", str(context.data_dir)}


def _taken_over_files(context: Context, result: IngestResult) -> list[OutputFile]:
    """Return the files on object storage that this version takes over from the version in use.

    Each part has two: its events, and the keys (hashes of the content) of its entries.
    """
    if context.current is None:
        return []
    taken_over = set()
    for part in result.parts:
        if _is_taken_over(part, context):
            taken_over.add((part.lies_in, f"events/{part.name}"))
            taken_over.add((part.lies_in, f"keys/{part.keys_name}"))
    return [file for file in context.current.files if (file.lies_in, file.path) in taken_over]
