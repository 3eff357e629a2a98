"""The trained networks as ONNX files for other programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pipeline.config import Config
from pipeline.configuration.keys import flat_items
from pipeline.runs.counters import TrainCounters
from pipeline.runs.outputs import content_digest, digest_of
from pipeline.runs.provenance import code_version
from pipeline.runs.seen_events import copy_record
from pipeline.runs.version import Version
from pipeline.stages.base import Check, Context, Result, Stage
from pipeline.terminal.tables import export_table, firmware_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from features.dataset import FeatureDataset
    from models.export.onnx_export import Provenance
    from models.networks.classifier import Classifier

#: Number of events of the test split for parity and latency.
_NUM_EVENTS: Final = 64
#: Firmware with at least this number of bits has to agree with its network; narrower firmware
#: rounds more.
_WIDE_BITS: Final = 20
#: Largest difference between probabilities of such firmware and those of its network.
_FIRMWARE_TOLERANCE: Final = 0.01
#: Highest number of events for the ranges of the firmware's numbers, and for its simulation.
_NUM_SIMULATED: Final = 2000
_WORKING_POINTS: Final = "working_points.json"


class Export(Stage):
    """Exports, checks against torch and times.

    See `models.export.onnx_export` and docs/trigger.md.
    """

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
        """Return a digest of the files and counters that it reads from a version.

        Of a training, only the models count that are exported: the first of each network. Further
        trainings with other seeds change nothing.
        """
        if version.manifest.stage != "train":
            return super().content_read(version, volatile)
        networks = version.counters(TrainCounters).networks
        return content_digest(version.files, {}, [f"{network}/model/*" for network in networks])

    def config_items(self, config: Config) -> dict[str, Any]:
        """Return the section `export` if firmware is wanted; else none of it has an effect."""
        return flat_items(config.export, "export") if config.export.hls4ml else {}

    def run(self, context: Context) -> Result:
        """Write the ONNX files and `config.pbtxt` of each network, and measurements of all.

        `export.json` gets the measurements. The checks demand that each file gives the same
        probabilities as torch, within a tolerance.
        """
        from training.threads import use_threads

        use_threads(context.config.train.threads)
        networks = list(context.upstream["train"].counters(TrainCounters).networks)
        # The measurements of each network, by its name.
        exported = {}
        with context.bar("export", "networks") as bar:
            for index, network in enumerate(networks):
                bar(index, len(networks), network)
                exported[network] = _export(context, network)
        text = json.dumps(exported, indent=1)
        (context.out_dir / "export.json").write_text(text, encoding="utf-8")
        context.console.print(export_table(exported))
        if any(measured["firmware"] for measured in exported.values()):
            context.console.print(firmware_table(exported))
        summaries = []
        checks: list[Check] = []
        for network, measured in exported.items():
            kilobytes = measured["forms"]["model.onnx"]["bytes"] / 1000
            # The median time of one event.
            latency = measured["latency_us"]["p50"]
            summaries.append(f"{network}: {kilobytes:,.0f} kB, {latency:,.0f} us an event")
            checks += _parity_checks(network, measured)
        return Result(summary=", ".join(summaries), counters={"networks": exported}, checks=checks)


def _parity_checks(network: str, measured: dict[str, Any]) -> list[Check]:
    """Return the checks that the files and the firmware of a network agree with torch.

    `measured` are the measurements of the network. Firmware with few bits is not checked, since
    it has to round.
    """
    checks = [
        _parity_check(f"{network}: {file}", form["largest_difference"], measured["tolerance"])
        for file, form in measured["forms"].items()
    ]
    for firmware in measured["firmware"]:
        if firmware["bits"] >= _WIDE_BITS:
            name = f"{network}: firmware with {firmware['bits']} bits"
            difference = firmware["largest_difference"]
            checks.append(_parity_check(name, difference, _FIRMWARE_TOLERANCE))
    return checks


def _parity_check(name: str, difference: float, tolerance: float) -> Check:
    """Return the check that the largest difference of probabilities is within a tolerance."""
    return Check(
        f"{name} agrees with torch",
        difference <= tolerance,
        f"largest difference of probabilities {difference:.1e} <= {tolerance:g}",
    )


def _export(context: Context, network: str) -> dict[str, Any]:
    """Export one network, and measure its agreement with torch and its speed.

    It writes `model.onnx` for any number of events, `config.pbtxt` for a Triton server, and where
    possible firmware. A network of dense layers, perhaps after an encoder of particles, also gets
    `one_event.onnx` for single events.

    Returns:
        The measurements as JSON content. `forms` are the files with their sizes [bytes] and largest
        differences of probabilities; `latency_us` is the time of one event [us].
    """
    from features.dataset import FeatureDataset
    from models.export.latency import measure_latency, measure_throughput
    from models.export.onnx_classifier import OneEventClassifier, OnnxClassifier
    from models.export.onnx_export import export_one_event, export_onnx
    from models.export.parity import PARITY_TOLERANCE, counts_to_compare, largest_difference
    from models.export.triton import triton_config
    from models.saved_model import load_model
    from pipeline.runs.plugin_code import check_same_code

    training = context.upstream["train"].folder / network
    dataset = FeatureDataset.load(context.upstream["features"].folder)
    model, spec = load_model(training / "model")
    check_same_code(f"the training of {network}", spec.plugin_code, dataset)
    folder, provenance = context.out_dir / network, _provenance(context, network)
    folder.mkdir()
    copy_record(training, folder)
    columns = _first_events(dataset, "test", model.inputs, _NUM_EVENTS)
    export_onnx(model, spec, folder / "model.onnx", provenance)
    exported = OnnxClassifier.load(folder / "model.onnx")
    particle_counts = counts_to_compare(dataset.max_particles)
    differences = {
        "model.onnx": largest_difference(model, exported, columns, particle_counts=particle_counts)
    }
    if model.standard_form() is not None:
        export_one_event(model, spec, folder / "one_event.onnx", provenance)
        one_event = OneEventClassifier(folder / "one_event.onnx")
        differences["one_event.onnx"] = largest_difference(
            model,
            one_event,
            columns,
            batch_sizes=(1, _NUM_EVENTS),
            particle_counts=particle_counts,
        )
    firmware = _export_firmware(context, model, dataset, folder)
    triton = triton_config(spec.settings, spec.classes)
    (folder / "config.pbtxt").write_text(triton, encoding="utf-8")
    has_particles = "particles" in columns
    # A network on lists of particles takes longer, so fewer calls are enough.
    latency = measure_latency(exported, columns, calls=1000 if has_particles else 10_000)
    return {
        "inputs": list(exported.inputs),
        "classes": exported.classes,
        "tolerance": PARITY_TOLERANCE,
        "forms": {
            file: {"bytes": (folder / file).stat().st_size, "largest_difference": difference}
            for file, difference in differences.items()
        },
        "firmware": firmware,
        "latency_us": latency._asdict(),
        "events_per_second": measure_throughput(exported, columns),
        "mean_particles": float(columns["num_particles"].mean()) if has_particles else None,
    }


def _export_firmware(
    context: Context, model: Classifier, dataset: FeatureDataset, folder: Path
) -> list[dict[str, Any]]:
    """Export a network to hls4ml, which turns it into firmware for FPGAs.

    Returns:
        The measurements of each firmware; empty if none is wanted, or if the network cannot be
        converted.
    """
    from models.export.hls4ml_export import export_firmware, is_convertible

    settings = context.config.export
    if not settings.hls4ml or not is_convertible(model):
        return []
    (folder / "hls4ml").mkdir()
    train = _first_events(dataset, "train", ["hlf"], _NUM_SIMULATED)["hlf"]
    test = _first_events(dataset, "test", ["hlf"], _NUM_SIMULATED)["hlf"]
    return export_firmware(model, train, test, folder / "hls4ml", bits=settings.hls4ml_bits)


def _first_events(
    dataset: FeatureDataset, split: str, names: Sequence[str], max_events: int
) -> dict[str, NDArray[Any]]:
    """Return inputs of the first events of a split, by name, from its first file only.

    Args:
        dataset: The features.
        split: "train", "val" or "test".
        names: Inputs of a network, such as `hlf`.
        max_events: The number of events, if the first file holds as many in its first batch.
    """
    from features.matrices import model_inputs, required_columns
    from hep_core.checked_parquet import open_parquet

    with open_parquet(dataset.files(split)[0]) as parquet:
        batch = next(parquet.iter_batches(max_events, columns=required_columns(names)))
        return model_inputs(batch, names, max_particles=None)


def _provenance(context: Context, network: str) -> Provenance:
    """Return what an exported file states about the origin of its network.

    This is the training with a digest of its files, versions of the code, digests of features and
    network, and the thresholds of its working points if it was evaluated.
    """
    from models.export.onnx_export import Provenance

    trained, features = context.upstream["train"], context.upstream["features"]
    evaluated = context.upstream.get("evaluate")
    working_points = None
    if evaluated is not None:
        text = (evaluated.folder / _WORKING_POINTS).read_text(encoding="utf-8")
        working_points = json.loads(text).get(network)
    # The records of a training hold its times, so no other training has the same bytes.
    digests = {
        file.path: file.digest for file in trained.files if file.path.startswith(f"{network}/")
    }
    return Provenance(
        run_id=f"train {trained.name} {digest_of(digests)[:16]}",
        code={"train": trained.manifest.code_version, "export": code_version()},
        digests={
            "features": content_digest(features.files, {}, ["train/*"]),
            "network": content_digest(trained.files, {}, [f"{network}/model/*"]),
        },
        working_points=working_points,
    )
