"""The events of `evaluate.data`, which an evaluation shows beside the simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from features.functions import needed_branches
from pipeline.config import Config
from pipeline.errors import MissingInputError
from pipeline.runs.version import Version
from pipeline.stages.base import Context
from pipeline.stages.evaluation_task import feature_settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from features.dataset import FeatureDataset
    from ingestion.file_info import FileInfo
    from ingestion.settings import IngestSettings
    from models.evaluation.data_comparison import DataEvents
    from models.prediction import Candidate


def find_data_files(
    config: Config,
    settings: IngestSettings,
    say: Callable[[str], None],
    *,
    needs_particles: bool,
    known: Sequence[FileInfo] = (),
) -> list[FileInfo]:
    """The checked files of `evaluate.data`.

    `settings` are those by which they are read; `known` files need no other check.
    """
    from ingestion.files import find_input_files
    from ingestion.settings import NO_WEIGHT, SampleSettings

    sample = SampleSettings(name="data", label=0, files=config.evaluate.data, weight=NO_WEIGHT)
    inventory = find_input_files(
        [sample],
        settings,
        say,
        # Without a file that cannot be read, the luminosity would be another.
        strict=True,
        known={info.path: info for info in known},
        needs_particles=needs_particles,
    )
    return inventory.infos


def data_file_records(infos: Sequence[FileInfo]) -> list[dict[str, Any]]:
    """Files for the manifest, with the digests by which a touched file is known to be unchanged."""
    from hep_core.storage import retry_remote
    from ingestion.changes import content_digest, has_changed_since_check

    records = []
    for info in infos:
        digest = info.digest or retry_remote(content_digest, info.path)
        if has_changed_since_check(info):
            digest = ""
        records.append(info._replace(digest=digest)._asdict())
    return records


def scored_data(
    context: Context, candidates: Sequence[Candidate], dataset: FeatureDataset
) -> dict[str, DataEvents]:
    """The selected events of `evaluate.data` with their probabilities, by model.

    Returns:
        Nothing if the config names no files.

    Raises:
        MissingInputError: No event passes the selection.
    """
    import numpy as np

    from ingestion.copies import event_keys
    from ingestion.settings import IngestSettings
    from models.evaluation.data_comparison import DataEvents
    from pipeline.scoring import EventClassifier, read_blocks

    if not context.config.evaluate.data:
        return {}
    reading = IngestSettings.model_validate({**dataset.reading, "pass_through": needed_branches()})
    selection = feature_settings(context.upstream["features"])
    infos = _files_to_score(context, reading, needs_particles=selection.particles)
    classifiers = {
        candidate.name: EventClassifier(
            candidate.name, candidate.model, dataset.classes, reading, selection
        )
        for candidate in candidates
    }
    features: list[NDArray[np.float32]] = []
    keys: list[NDArray[np.uint64]] = []
    scores: dict[str, list[NDArray[np.float32]]] = {name: [] for name in classifiers}
    for raw, ingested, block in read_blocks(infos, reading, selection):
        rows = ingested.table["entry"].to_numpy()[block.selected] - raw.entries[0]
        features.append(block.hlf)
        keys.append(event_keys(raw.scalars, raw.collections)[rows])
        for name, classifier in classifiers.items():
            scores[name].append(classifier.block_scores(block))
    if sum(len(rows) for rows in features) == 0:
        raise MissingInputError(
            "evaluate.data: no event of these files passes the selection. Give others, or none."
        )
    all_features = np.concatenate(features)
    copies = _count_copies(context.upstream["ingest"], np.concatenate(keys))
    for origin, num_copies in copies.items():
        if num_copies:
            context.say(
                f"note: {num_copies} events of evaluate.data are copies of others in the {origin}"
            )
    num_entries = sum(info.entries for info in infos)
    return {
        name: DataEvents(
            all_features,
            np.concatenate(model_scores).astype(np.float64),
            copies,
            len(infos),
            num_entries,
        )
        for name, model_scores in scores.items()
    }


def _files_to_score(
    context: Context, reading: IngestSettings, *, needs_particles: bool
) -> list[FileInfo]:
    """The files of `evaluate.data`, which are checked again if the models read them otherwise."""
    settings = context.config.ingest.model_copy(update={"pass_through": needed_branches()})
    checked = context.inputs.details if reading == settings else []
    return find_data_files(
        context.config, reading, context.say, needs_particles=needs_particles, known=checked
    )


def _count_copies(ingested: Version, keys: NDArray[np.uint64]) -> dict[str, int]:
    """Number of events that the data, or the simulation, hold twice, by their keys.

    See `ingestion.copies`.
    """
    import numpy as np

    from ingestion.copies import read_keys

    keys = keys[keys != 0]
    num_simulated = 0
    for file in ingested.files_like(["keys/*"]):
        simulated_keys = read_keys(file.location(ingested.folder))
        num_simulated += int(np.isin(simulated_keys, keys).sum())
    return {"data": len(keys) - len(np.unique(keys)), "simulation": num_simulated}
