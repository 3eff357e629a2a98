"""The trained networks as ONNX files for other programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pipeline.config import Config
from pipeline.configuration.keys import flat_items
from pipeline.runs.counters import TrainCounters
from pipeline.runs.outputs import content_digest, digest_of
from pipeline.runs.provenance import code_version
from pipeline.runs.seen_events import copy_record
from pipeline.runs.version import Version
from pipeline.stages.base import Check, Context, Result, Stage
from pipeline.terminal.tables import export_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from features.dataset import FeatureDataset
    from models.export.onnx_export import Provenance

#: Number of events of the test split for parity and latency.
_EVENTS: Final = 64
#: Firmware with at least this number of bits has to agree with its network; narrower firmware rounds more.
_WIDE: Final = 20
_FIRMWARE_TOLERANCE: Final = 0.01
#: Highest number of events for the ranges of the firmware's numbers, and for its simulation.
_SIMULATED: Final = 2000
_WORKING_POINTS: Final = "working_points.json"


class Export(Stage):
    """Exports, checks against torch and times; see `models.export.onnx_export` and docs/trigger.md."""

    name: ClassVar[str] = "export"
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "features": ("dataset.json", "test/*"),
        "train": ("*/model/*",),
        "evaluate": (_WORKING_POINTS,),
    }
    optional_upstream: ClassVar[tuple[str, ...]] = ("evaluate",)
    volatile: ClassVar[frozenset[str]] = frozenset(
        {"export.json/*/events_per_second", "export.json/*/latency_us"}
    )

    def entry_points(self, config: Config) -> tuple[str, ...]:
        """Also the networks."""
        return (f"pipeline.stages.{self.name}", *config.model.modules)

    def content_read(self, version: Version, volatile: frozenset[str]) -> str:
        """Digest of what it reads; of a training only the models that it exports.

        These are the first of each network.
        """
        if version.manifest.stage != "train":
            return super().content_read(version, volatile)
        networks = version.counters(TrainCounters).networks
        return content_digest(version.files, {}, [f"{network}/model/*" for network in networks])

    def config_items(self, config: Config) -> dict[str, Any]:
        """The section `export`; of the firmware only where it is wanted."""
        return flat_items(config.export, "export") if config.export.hls4ml else {}

    def run(self, context: Context) -> Result:
        """Write `export.json`, and for each network `model.onnx`, `one_event.onnx` and `config.pbtxt`."""
        from training.threads import use_threads

        use_threads(context.config.train.threads)
        networks = list(context.upstream["train"].counters(TrainCounters).networks)
        found = {}
        with context.bar("export", "networks") as bar:
            for number, network in enumerate(networks):
                bar(number, len(networks), network)
                found[network] = _export(context, network)
        (context.out_dir / "export.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        context.console.print(export_table(found))
        compared = [
            (f"{network}: {file}", form["largest_difference"], each["tolerance"])
            for network, each in found.items()
            for file, form in each["forms"].items()
        ] + [
            (
                f"{network}: firmware with {one['bits']} bits",
                one["largest_difference"],
                _FIRMWARE_TOLERANCE,
            )
            for network, each in found.items()
            for one in each["firmware"]
            if one["bits"] >= _WIDE
        ]
        return Result(
            summary=", ".join(
                f"{network}: {each['forms']['model.onnx']['bytes'] / 1000:,.0f} kB, "
                f"{each['latency_us']['p50']:,.0f} us an event"
                for network, each in found.items()
            ),
            counters={"networks": found},
            checks=[
                Check(
                    f"{name} agrees with torch",
                    difference <= tolerance,
                    f"largest difference of probabilities {difference:.1e} <= {tolerance:g}",
                )
                for name, difference, tolerance in compared
            ],
        )


def _export(context: Context, network: str) -> dict[str, Any]:
    """Export one network; returns the measurements."""
    from features.dataset import FeatureDataset
    from models.export.hls4ml_export import export_firmware, is_convertible
    from models.export.latency import measure_latency, measure_throughput
    from models.export.onnx_classifier import OneEventClassifier, OnnxClassifier
    from models.export.onnx_export import export_one_event, export_onnx
    from models.export.parity import PARITY_TOLERANCE, largest_difference
    from models.export.triton import triton_config
    from models.saved_model import load_model

    dataset = FeatureDataset.load(context.upstream["features"].folder)
    model, spec = load_model(context.upstream["train"].folder / network / "model")
    folder, provenance = context.out_dir / network, _provenance(context, network)
    folder.mkdir()
    copy_record(context.upstream["train"].folder / network, folder)
    columns = _first_events(dataset, "test", model.inputs, _EVENTS)
    export_onnx(model, spec, folder / "model.onnx", provenance)
    exported = OnnxClassifier.load(folder / "model.onnx")
    differences = {"model.onnx": largest_difference(model, exported, columns)}
    if model.standard_form() is not None:
        export_one_event(model, spec, folder / "one_event.onnx", provenance)
        one = OneEventClassifier(folder / "one_event.onnx")
        differences["one_event.onnx"] = largest_difference(
            model, one, columns, batch_sizes=(_EVENTS,)
        )
    firmware = []
    if context.config.export.hls4ml and is_convertible(model):
        (folder / "hls4ml").mkdir()
        train, test = (
            _first_events(dataset, split, ["hlf"], _SIMULATED)["hlf"] for split in ("train", "test")
        )
        firmware = export_firmware(
            model, train, test, folder / "hls4ml", bits=context.config.export.hls4ml_bits
        )
    (folder / "config.pbtxt").write_text(
        triton_config(spec.settings, spec.classes), encoding="utf-8"
    )
    return {
        "inputs": list(exported.inputs),
        "classes": exported.classes,
        "tolerance": PARITY_TOLERANCE,
        "forms": {
            file: {"bytes": (folder / file).stat().st_size, "largest_difference": difference}
            for file, difference in differences.items()
        },
        "firmware": firmware,
        "latency_us": measure_latency(
            exported, columns, calls=1000 if "particles" in columns else 10_000
        )._asdict(),
        "events_per_second": measure_throughput(exported, columns),
        "mean_particles": float(columns["num_particles"].mean())
        if "particles" in columns
        else None,
    }


def _first_events(
    dataset: FeatureDataset, split: str, names: Sequence[str], most: int
) -> dict[str, NDArray[Any]]:
    """Inputs of the first events of a split, of at most one file."""
    from features.matrices import model_inputs, required_columns
    from hep_core.checked_parquet import open_parquet

    with open_parquet(dataset.files(split)[0]) as parquet:
        return model_inputs(
            next(parquet.iter_batches(most, columns=required_columns(names))),
            names,
            max_particles=None,
        )


def _provenance(context: Context, network: str) -> Provenance:
    """Where a network comes from, and its thresholds if it is evaluated."""
    from models.export.onnx_export import Provenance

    trained, features = context.upstream["train"], context.upstream["features"]
    evaluated, points = context.upstream.get("evaluate"), None
    if evaluated is not None:
        points = json.loads((evaluated.folder / _WORKING_POINTS).read_text(encoding="utf-8")).get(
            network
        )
    # The records of a training hold its times, so no other training has the same bytes.
    files = {
        each.path: each.digest for each in trained.files if each.path.startswith(f"{network}/")
    }
    return Provenance(
        run_id=f"train {trained.name} {digest_of(files)[:16]}",
        code={"train": trained.manifest.code_version, "export": code_version()},
        digests={
            "features": content_digest(features.files, {}, ["train/*"]),
            "network": content_digest(trained.files, {}, [f"{network}/model/*"]),
        },
        working_points=points,
    )
