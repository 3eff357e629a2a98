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
from pipeline.machine.spark_session import counted
from pipeline.runs.counters import IngestCounters
from pipeline.runs.provenance import package_versions
from pipeline.runs.version import Version
from pipeline.stages.base import Check, Context, Result, Stage, StageInputs
from pipeline.stages.input_files import files_read, files_skipped, identities
from pipeline.terminal.progress import Bar

if TYPE_CHECKING:
    from ingestion.file_info import BadFile, FileInfo
    from ingestion.spark_job import EarlierParts, IngestResult


_JOB: Final = "ingestion.spark_job"
#: What a sample states about how its files are read.
_READ_BY: Final = ("label", "label_by", "weight", "weights", "tree", "branch_map")


class Ingest(Stage):
    """Reads the new ROOT files of all samples; see `ingestion.spark_job`."""

    name: ClassVar[str] = "ingest"
    #: Nothing of the version: the simulated files are inputs of their own, by the UUID of their content.
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {"simulate": ()}
    uses_storage: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = (Need.SPARK,)

    def upstream_of(self, config: Config) -> tuple[str, ...]:
        """The stage `simulate`, if it makes the samples."""
        return ("simulate",) if config.simulate.processes else ()

    def config_items(self, config: Config) -> dict[str, Any]:
        """Thresholds, names, and what each sample states but for numbers that scale its weights."""
        of_samples = {
            f"samples.{sample.name}.{key}": getattr(sample, key)
            for sample in config.samples
            for key in _READ_BY
        }
        of_samples |= {
            f"samples.{sample.name}.sum_of_weights": sample.sum_of_weights
            for sample in config.samples
            if isinstance(sample.sum_of_weights, str)
        }
        particles = {"features.particles": config.features.particles}
        return {**flat_items(config.ingest, "ingest"), **of_samples, **particles}

    def find_inputs(self, config: Config, current: Version | None, console: Console) -> StageInputs:
        """The ROOT files, by UUID: moving a file changes nothing. Details: an `ingestion.files.Inventory`."""
        from ingestion.changes import carry_over_revisions
        from ingestion.files import find_input_files

        def say(words: str) -> None:
            console.print(f"  {words}", highlight=False, markup=False)

        infos, bad = files_read(current), files_skipped(current)
        known: dict[str, FileInfo | BadFile] = {}
        # A change of the branches or the tree requires a new check of the files.
        if current is not None and current.ran_same_code(_JOB) and _same_settings(config, current):
            known = {info.path: info for info in infos}
            # Other packages may read what those of the time could not.
            if current.manifest.packages == package_versions():
                known |= {
                    each.path: each
                    for each in bad
                    if self._is_read_alike(each.sample, config, current)
                }
        with Bar(console, "checking files", "files") as bar:
            particles = config.features.particles
            found = find_input_files(
                config.samples,
                config.ingest,
                say,
                known=known,
                on_file=bar,
                needs_particles=particles,
            )
        # The cross-section of simulated events is that of those in the files.
        ours = (config.run_dir / "simulate").absolute()
        checked = [
            i._replace(skim="") if Path(i.path).absolute().is_relative_to(ours) else i
            for i in found.infos
        ]
        found = found._replace(infos=carry_over_revisions(checked, infos))
        # With their current paths and times the next run need not check them again.
        return StageInputs(
            identities(found.infos, found.bad), found, [info._asdict() for info in found.infos]
        )

    def _is_read_alike(self, sample: str, config: Config, current: Version) -> bool:
        """Whether a version read the files of a sample by what the sample states now."""
        before, now = current.made_from.config, self.config_items(config)
        keys = [f"samples.{sample}.{key}" for key in _READ_BY]
        return all(key in before and key in now and before[key] == now[key] for key in keys)

    def run(self, context: Context) -> Result:
        """Read new files, and take over the events of unchanged ones."""
        from ingestion.spark_job import ingest

        config = context.config
        infos, bad, _ = context.inputs.details
        earlier = self._earlier_parts(context, infos)
        events_dir = context.data_dir / "events"
        make_folder(events_dir)
        spark = context.start_spark(info.path for info in infos)
        to_read = sum(
            info.entries for info in infos if not earlier or info.uuid not in earlier.parts
        )
        with context.bar("ingest", "events") as bar, counted(spark, bar, to_read) as done:
            result = ingest(
                spark,
                infos,
                config.samples,
                config.ingest,
                events_dir,
                done=done,
                num_tasks=context.spark.num_tasks,
                earlier=earlier,
                bad=bad,
            )
        _refuse_damaged_simulation(context, result.infos)
        if any(info.lacks_particles for info in infos if info.entries):
            context.say(
                "note: The files have no particles: the isolations of leptons are 0, and no lepton fails their cut."
            )
        counters = sums_by_sample(result.parts)["samples"]
        unread_files = [*result.bad, *context.inputs.details.waiting]
        for note in notes(infos, config.samples, counters, unread_files):
            context.say(f"note: {note}")
        for words in group_messages((each.path, each.message) for each in result.bad):
            context.say(f"skipped: {words}")
        return _result(context, result)

    def _earlier_parts(self, context: Context, infos: list[FileInfo]) -> EarlierParts | None:
        """Parts of unchanged files in the version in use, if the same code made them with the same settings."""
        from ingestion.changes import is_unchanged
        from ingestion.range_output import EventsPart
        from ingestion.spark_job import EarlierParts

        current = context.current
        if (
            current is None
            or not current.ran_same_code(_JOB)
            or not _same_settings(context.config, current)
        ):
            return None
        old = {info.uuid: info for info in files_read(current)}
        parts: dict[str, list[EventsPart]] = {}
        unchanged = {
            info.uuid
            for info in infos
            if is_unchanged(info, old.get(info.uuid))
            and all(
                getattr(info, name) == getattr(old[info.uuid], name)
                for name in ("sample", *_READ_BY)
            )
        }
        for part in (
            EventsPart(**each.model_dump()) for each in current.counters(IngestCounters).parts
        ):
            if part.file_uuid in unchanged:
                parts.setdefault(part.file_uuid, []).append(part)
            if context.missing & {f"events/{part.name}", f"keys/{part.keys_name}"}:
                unchanged.discard(part.file_uuid)
        there = {uuid: each for uuid, each in parts.items() if uuid in unchanged}
        return EarlierParts(current.folder / "events", there)


def _refuse_damaged_simulation(context: Context, infos: Iterable[FileInfo]) -> None:
    """Refuse simulated files that were read and are not what `simulate` wrote; the ingest has their digests anyway."""
    if "simulate" not in context.upstream:
        return
    simulated = context.upstream["simulate"]
    files = {str(file.location(simulated.folder).absolute()): file for file in simulated.files}
    for info in infos:
        file = files.get(str(Path(info.path).absolute()))
        if file and info.digest and info.digest != file.digest:
            raise simulated.damage_of(file)


def _same_settings(config: Config, current: Version) -> bool:
    """Whether a version was made with these trees, branches and thresholds."""
    before = current.made_from.config
    same_pieces = current.config.ingest.get("entries_per_task") == config.ingest.entries_per_task
    now = {**flat_items(config.ingest, "ingest"), "features.particles": config.features.particles}
    return same_pieces and all(before.get(key) == value for key, value in now.items())


def _result(context: Context, result: IngestResult) -> Result:
    """Counters, checks and the line for the terminal."""
    sums = sum_counts(result.parts).counts
    there = sum(info.entries for info in result.infos)
    events_dir, before = context.data_dir / "events", context.current
    parts = [part for part in result.parts if part.name]
    own = {part.name for part in parts if part.lies_in in {"", str(context.data_dir)}}
    rows = sum(
        footer.num_rows for footer in read_footers([part.file(events_dir) for part in parts])
    )
    accounted = sums["events"] + sum(
        count for step, count in sums.items() if step.startswith("rejected_")
    )
    reused = sum(info.entries > 0 for info in result.infos) - result.num_read
    summary = [
        f"{len(result.infos)} files, {sums['entries']} entries, {sums['events']} events kept",
        f"{result.num_read} files read, {reused} reused" if reused > 0 else "",
        f"azimuths of {wrapped} events wrapped to [-π, π]"
        if (wrapped := sums[WRAPPED_AZIMUTHS])
        else "",
        f"{copies} copies left out" if (copies := sums["rejected_copy"]) else "",
        f"{len(result.bad)} bad files skipped" if result.bad else "",
    ]
    others = [part for part in result.parts if part.lies_in not in {"", str(context.data_dir)}]
    earlier = {
        (part.lies_in, path)
        for part in others
        for path in (f"events/{part.name}", f"keys/{part.keys_name}")
    }
    return Result(
        summary="; ".join(filter(None, summary)),
        counters={
            **sums_by_sample(result.parts),
            "generated": result.generated,
            "files_read": result.num_read,
            "bad_files": [each._asdict() for each in result.bad],
            "waiting_files": [each._asdict() for each in context.inputs.details.waiting],
            "parts": [part._asdict() for part in result.parts],
        },
        checks=[
            Check(
                "entries read = entries in the files",
                sums["entries"] == there,
                f"{sums['entries']} = {there}",
            ),
            Check(
                "entries = events + rejections",
                accounted == sums["entries"],
                f"{sums['entries']} = {accounted}",
            ),
            Check(
                "files in the folder = parts", file_sizes(events_dir).keys() == own, f"{len(own)}"
            ),
            Check(
                "rows in the Parquet = events", rows == sums["events"], f"{rows} = {sums['events']}"
            ),
        ],
        inputs=[info._asdict() for info in result.infos],
        inputs_read=identities(result.infos, result.bad),
        digests={f"events/{part.name}": part.digest for part in parts},
        taken_over=[each for each in before.files if (each.lies_in, each.path) in earlier]
        if before
        else [],
    )
