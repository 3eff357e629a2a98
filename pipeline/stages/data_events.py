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
    """Find and check the ROOT files of `evaluate.data`.

    Args:
        config: The config.
        settings: How the files are read.
        say: Called with notes about the files.
        needs_particles: Whether the features need the lists of particles.
        known: Files that were checked before; an unchanged one is not opened again.

    Raises:
        hep_core.input_errors.InputFileError: A file is missing or cannot be read.
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
    """Return the records of ROOT files for the manifest, each with a digest of the content.

    By the digest, a later run knows that a file with a new time is unchanged. It is empty for URLs,
    and for a file that changed after its check, since nobody knows which content was read.
    """
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
    """Score the selected events of `evaluate.data` with each model.

    The files are read piece by piece; their events pass the same selection as those of the
    training. A note says how many events are copies of others.

    Args:
        context: The context of `evaluate`.
        candidates: The models.
        dataset: The features that the models are evaluated on.

    Returns:
        High-level features and probabilities of the events by model; empty if the config names
        no files.

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
        # Rows of the selected events within this piece of the file.
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
    """Return the files of `evaluate.data`, checked for the settings by which they are read.

    `find_inputs` has checked them for the settings of the config. If the features were made with
    other settings (`reading`), they are checked again.
    """
    settings = context.config.ingest.model_copy(update={"pass_through": needed_branches()})
    checked = context.inputs.details if reading == settings else []
    return find_data_files(
        context.config, reading, context.say, needs_particles=needs_particles, known=checked
    )


def _count_copies(ingested: Version, keys: NDArray[np.uint64]) -> dict[str, int]:
    """Count copies by the keys of events, which are hashes of their content.

    Args:
        ingested: The version of `ingest` with the simulated events.
        keys: Keys of the selected data events; 0 for events without one. See `ingestion.copies`.

    Returns:
        `data`: how many data events are copies of other data events. `simulation`: how many
        simulated events are also in the data.
    """
    import numpy as np

    from ingestion.copies import read_keys

    keys = keys[keys != 0]
    num_simulated = 0
    for file in ingested.files_like(["keys/*"]):
        simulated_keys = read_keys(file.location(ingested.folder))
        num_simulated += int(np.isin(simulated_keys, keys).sum())
    return {"data": len(keys) - len(np.unique(keys)), "simulation": num_simulated}
