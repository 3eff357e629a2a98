"""The events of `evaluate.data`, which an evaluation shows beside the simulation."""

from __future__ import annotations

from collections import Counter
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
    from features.settings import FeatureSettings
    from ingestion.file_info import FileInfo
    from ingestion.files import Inventory
    from ingestion.settings import IngestSettings, SampleSettings
    from models.evaluation.data_comparison import DataEvents
    from models.prediction import Candidate


def data_settings(ingest: IngestSettings) -> IngestSettings:
    """Return how the files of `evaluate.data` are read: as `ingest` says, and each of them.

    Tree and branches that samples state are those of the samples alone. Each event counts 1, so
    there are no weights.
    """
    from ingestion.settings import OnBadFile

    return ingest.model_copy(
        update={
            "pass_through": needed_branches(),
            "weights": {},
            # Without a file that cannot be read, the luminosity would be another.
            "on_bad_file": OnBadFile.FAIL,
        }
    )


def find_data_files(
    config: Config,
    say: Callable[[str], None],
    *,
    known: Sequence[FileInfo] = (),
    on_file: Callable[[int, int], None] | None = None,
) -> Inventory:
    """Find and check the ROOT files of `evaluate.data`; the run reads these and no others.

    Args:
        config: The config.
        say: Called with notes about the files, such as those that are left for another run.
        known: Files that were checked before; an unchanged one is not opened again.
        on_file: Called with the numbers of checked and of all files.

    Raises:
        hep_core.input_errors.InputFileError: A file is missing or cannot be read.
    """
    from ingestion.files import find_input_files

    return find_input_files(
        [_data_sample(config)],
        data_settings(config.ingest),
        say,
        strict=True,
        known={info.path: info for info in known},
        on_file=on_file,
        needs_particles=config.features.particles,
    )


def _data_sample(config: Config) -> SampleSettings:
    """Return the files of `evaluate.data` as a sample, whose class and name have no meaning."""
    from ingestion.settings import NO_WEIGHT, SampleSettings

    return SampleSettings(name="data", label=0, files=config.evaluate.data, weight=NO_WEIGHT)


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
    training. Notes say how many events are copies of others, and what looks wrong in the values.

    Args:
        context: The context of `evaluate`.
        candidates: The models.
        dataset: The features that the models are evaluated on.

    Returns:
        High-level features and probabilities of the events by model; empty if the config names
        no files.

    Raises:
        ConflictingFilesError: A file has particles and those of the training have none, or the
            reverse.
        MissingInputError: No event passes the selection.
    """
    import numpy as np

    from ingestion.conflicts import check_particles_of_training
    from ingestion.copies import event_keys
    from ingestion.notes import unusual_content
    from models.evaluation.data_comparison import DataEvents
    from pipeline.scoring import EventClassifier, read_blocks

    if not context.config.evaluate.data:
        return {}
    selection = feature_settings(context.upstream["features"])
    reading, infos = _files_to_score(context, selection)
    check_particles_of_training(infos, dataset.reading)
    classifiers = {
        candidate.name: EventClassifier(
            candidate.name, candidate.model, dataset.classes, reading, selection
        )
        for candidate in candidates
    }
    features: list[NDArray[np.float32]] = []
    keys: list[NDArray[np.uint64]] = []
    counts: Counter[str] = Counter()
    scores: dict[str, list[NDArray[np.float32]]] = {name: [] for name in classifiers}
    for raw, ingested, block in read_blocks(infos, reading, selection):
        # Rows of the selected events within this piece of the file.
        rows = ingested.table["entry"].to_numpy()[block.selected] - raw.entries[0]
        counts.update(ingested.tally().counts)
        features.append(block.hlf)
        keys.append(event_keys(raw.scalars, raw.collections)[rows])
        for name, classifier in classifiers.items():
            scores[name].append(classifier.block_scores(block))
    for sentence in unusual_content({"evaluate.data": counts}):
        context.say(f"note: {sentence}")
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
    context: Context, selection: FeatureSettings
) -> tuple[IngestSettings, list[FileInfo]]:
    """Return the files that `find_inputs` found, and the settings that they are checked for.

    The samples may have been ingested, and their features made, with other settings than those of
    the config now. The data are read like them, so the same files are then checked again.
    """
    from ingestion.files import inventory
    from ingestion.settings import IngestSettings
    from ingestion.sources import SourceFile

    infos: list[FileInfo] = context.inputs.details
    settings = data_settings(context.config.ingest)
    ingested = IngestSettings.model_validate(context.upstream["ingest"].config.ingest)
    # Which files are read is decided, so none is left out here.
    reading = data_settings(ingested).model_copy(update={"until": None, "settle_seconds": 0.0})
    unused = set(IngestSettings.SPEED_ONLY)
    is_read_alike = reading.model_dump(exclude=unused) == settings.model_dump(exclude=unused)
    if is_read_alike and selection.particles == context.config.features.particles:
        return reading, infos
    source = SourceFile(_data_sample(context.config), "", needs_particles=selection.particles)
    sources = [source._replace(path=info.path) for info in infos]
    return reading, inventory(sources, reading).infos


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
