"""The trained networks as files for other programs: ONNX, and the exported program of torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from pipeline.config import Config
from pipeline.runs.outputs import content_digest
from pipeline.runs.store import Version
from pipeline.stages.base import Check, Context, Result, Stage
from pipeline.terminal.tables import export_table

#: Number of events of the test split for parity and latency.
_EVENTS: Final = 64


class Export(Stage):
    """Exports, checks against torch and times; see `models.export.onnx_export` and docs/trigger.md."""

    name: ClassVar[str] = "export"
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "features": ("dataset.json", "test/*"),
        "train": ("*/model/*",),
    }

    def entry_points(self, config: Config) -> tuple[str, ...]:
        """Also the networks."""
        return (f"pipeline.stages.{self.name}", *(f"models.networks.{network}" for network in config.model.names))

    def content_read(self, version: Version) -> str:
        """Of a training the models that are exported: the first of each network."""
        if version.manifest["stage"] != "train":
            return super().content_read(version)
        networks = version.manifest["counters"]["networks"]
        return content_digest(version.files, None, [f"{network}/model/*" for network in networks])

    def config_items(self, config: Config) -> dict[str, Any]:  # noqa: ARG002
        """None: the result depends on the networks only."""
        return {}

    def run(self, context: Context) -> Result:
        """Write `<network>/model.onnx`, `<network>/model.pt2` and `export.json`."""
        from training.threads import use_threads

        use_threads(context.config.train.threads)
        trained = context.upstream["train"]
        networks = list(trained.manifest["counters"]["networks"])
        found = {}
        with context.bar("export", "networks") as bar:
            for number, network in enumerate(networks):
                bar(number, len(networks), network)
                found[network] = _export(context, network, f"train {trained.name}")
        (context.out_dir / "export.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        context.console.print(export_table(found))
        return Result(
            summary=", ".join(
                f"{network}: {each['bytes'] / 1000:,.0f} kB, {each['latency_us']['p50']:,.0f} us an event"
                for network, each in found.items()
            ),
            counters={"networks": found},
            checks=[
                Check(
                    f"{network}: ONNX agrees with torch",
                    each["largest_difference"] <= each["tolerance"],
                    f"largest difference of probabilities {each['largest_difference']:.1e} <= {each['tolerance']:g}",
                )
                for network, each in found.items()
            ],
        )


def _export(context: Context, network: str, run_id: str) -> dict[str, Any]:
    """Export one network; returns the measurements."""
    import pyarrow.parquet as pq

    from features.dataset import FeatureDataset
    from models.export.latency import measure_latency, measure_throughput
    from models.export.onnx_classifier import OnnxClassifier
    from models.export.onnx_export import export_onnx
    from models.export.parity import PARITY_TOLERANCE, largest_difference
    from models.export.program_export import export_program
    from models.prediction import rows_of
    from models.saved_model import load_model

    dataset = FeatureDataset.load(context.upstream["features"].folder)
    model, spec = load_model(context.upstream["train"].folder / network / "model")
    folder = context.out_dir / network
    folder.mkdir()
    export_onnx(model, spec, folder / "model.onnx", run_id=run_id)
    export_program(model, spec, folder / "model.pt2")
    with pq.ParquetFile(dataset.files("test")[0]) as parquet:
        batch = next(parquet.iter_batches(_EVENTS, columns=list(model.inputs)))
    columns = {name: rows_of(batch, name) for name in model.inputs}
    exported = OnnxClassifier.load(folder / "model.onnx")
    return {
        "bytes": (folder / "model.onnx").stat().st_size,
        "inputs": list(exported.inputs),
        "classes": exported.classes,
        "tolerance": PARITY_TOLERANCE,
        "largest_difference": largest_difference(model, exported, columns),
        "latency_us": measure_latency(exported, columns, calls=1000 if "particles" in columns else 10_000)._asdict(),
        "events_per_second": measure_throughput(exported, columns),
        "mean_particles": float(columns["num_particles"].mean()) if "particles" in columns else None,
    }
