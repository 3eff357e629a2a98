"""ROOT files to events Parquet."""

from __future__ import annotations

from typing import Any, ClassVar

from pipeline.config import Config, flat_items
from pipeline.doctor import Need
from pipeline.fingerprint import Input
from pipeline.spark import counted
from pipeline.stages.base import Check, Context, Result, Stage
from pipeline.store import Version


class Ingest(Stage):
    """Reads the ROOT files of all samples; see `ingestion.job`."""

    name: ClassVar[str] = "ingest"
    code: ClassVar[tuple[str, ...]] = ("ingestion",)
    needs: ClassVar[tuple[Need, ...]] = (Need.SPARK,)

    def config_items(self, config: Config) -> dict[str, Any]:
        """Thresholds, names, and which label each sample has."""
        labels = {f"samples.{sample.name}.label": sample.label for sample in config.samples}
        return {**flat_items(config.ingest, "ingest"), **labels}

    def own_inputs(self, config: Config, current: Version | None) -> dict[str, Input]:
        """The ROOT files, by UUID: moving a file changes nothing."""
        from ingestion.files import FileInfo, expand, inventory

        known = {}
        if current is not None:
            infos = [
                FileInfo(**{**each, "missing_optional": tuple(each["missing_optional"])})
                for each in current.manifest["inputs"]
            ]
            # Files are checked anew when other branches or another tree are asked for.
            if current.manifest["fingerprint"]["config"] == self.config_items(config):
                known = {info.path: info for info in infos}
        infos = inventory(expand(config.samples), config.ingest, known=known)
        return {info.uuid: Input(info.path, f"{info.sample}:{info.size}:{info.entries}") for info in infos}

    def run(self, context: Context) -> Result:
        """Check all files, then read them."""
        import pyarrow.parquet as pq

        from ingestion.files import expand, inventory
        from ingestion.job import ingest, sum_counters

        config = context.config
        with context.bar("checking files", "files") as bar:
            infos = inventory(expand(config.samples), config.ingest, on_file=bar)
        events_dir = context.out_dir / "events"
        events_dir.mkdir()
        spark = context.spark.context()
        total = sum(info.entries for info in infos)
        with context.bar("ingest", "events") as bar, counted(spark, bar, total) as done:
            result = ingest(
                spark,
                infos,
                config.samples,
                config.ingest,
                events_dir,
                done=done,
                num_tasks=context.spark.num_tasks,
            )
        sums = sum_counters(result.counters.values())
        rows = sum(pq.read_metadata(path).num_rows for path in events_dir.glob("*.parquet"))
        accounted = sums["rejected_nonfinite"] + sums["rejected_no_lepton"] + sums["events"]
        return Result(
            summary=f"{len(infos)} files, {sums['entries']} entries, {sums['events']} events kept",
            counters={
                "samples": result.counters,
                "parts": [{**part._asdict(), "counters": part.counters} for part in result.parts],
            },
            checks=[
                Check(
                    "entries read = entries in the files",
                    sums["entries"] == total,
                    f"{sums['entries']} = {total}",
                ),
                Check(
                    "entries = events + rejections",
                    accounted == sums["entries"],
                    f"{sums['entries']} = {accounted}",
                ),
                Check("rows in the Parquet = events", rows == sums["events"], f"{rows} = {sums['events']}"),
            ],
            inputs=[info._asdict() for info in infos],
        )
