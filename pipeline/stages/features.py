"""Events Parquet to features Parquet."""

from __future__ import annotations

from typing import Any, ClassVar

from pipeline.config import Config, flat_items
from pipeline.doctor import Need
from pipeline.spark import counted
from pipeline.stages.base import Check, Context, Result, Stage


class Features(Stage):
    """Selects events and makes model inputs of them; see `features.job`."""

    name: ClassVar[str] = "features"
    upstream: ClassVar[tuple[str, ...]] = ("ingest",)
    code: ClassVar[tuple[str, ...]] = ("features", "ingestion/schema.py")
    needs: ClassVar[tuple[Need, ...]] = (Need.SPARK,)

    def config_items(self, config: Config) -> dict[str, Any]:
        """Selection, physics, split, balance, layout, and the classes."""
        return {**flat_items(config.features, "features"), "classes": config.classes}

    def run(self, context: Context) -> Result:
        """Run the kernels, then mix."""
        import pyarrow.parquet as pq

        from features.job import make_features
        from features.schema import SPLITS

        ingested = context.upstream["ingest"]
        parts = [
            (part["sample"], ingested.folder / "events" / part["name"])
            for part in ingested.manifest["counters"]["parts"]
            if part["name"]
        ]
        total = sum(sample["events"] for sample in ingested.manifest["counters"]["samples"].values())
        spark = context.spark.context()
        with context.bar("features", "events") as bar, counted(spark, bar, total) as done:
            dataset, counters = make_features(
                spark,
                parts,
                context.config.features,
                context.config.classes,
                context.out_dir,
                done=done,
                num_tasks=context.spark.num_tasks,
            )
        selected = sum(sample["selected"] for sample in counters.values())
        kept = sum(dataset.num_rows(split) for split in SPLITS)
        footers = {split: [pq.read_metadata(path) for path in dataset.files(split)] for split in SPLITS}
        rows = sum(footer.num_rows for split in SPLITS for footer in footers[split])
        one_each = all(footer.num_row_groups == 1 for split in SPLITS for footer in footers[split])
        accounted = sum(
            sample["rejected_no_isolated_lepton"] + sample["rejected_nonfinite_features"] + sample["selected"]
            for sample in counters.values()
        )
        events_in = sum(sample["events"] for sample in counters.values())
        shares = ", ".join(f"{split} {dataset.num_rows(split)}" for split in SPLITS)
        fed = ", ".join(map(str, dataset.evenly_fed()))
        return Result(
            summary=f"{selected} events selected ({shares}); feeds {fed} workers evenly",
            counters={
                "samples": counters,
                "splits": dataset.counts,
                "dropped_by_balancing": selected - kept,
                "row_groups": {split: len(dataset.splits[split]) for split in SPLITS},
            },
            checks=[
                Check("events read = events ingested", events_in == total, f"{events_in} = {total}"),
                Check("events = selected + rejections", accounted == events_in, f"{events_in} = {accounted}"),
                Check("rows in the Parquet = rows planned", rows == kept, f"{rows} = {kept}"),
                Check("one row group per file", one_each, "all footers"),
            ],
        )
