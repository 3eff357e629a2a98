"""Notes about files that a model scores: known events, and content that looks wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from features.dataset import FeatureDataset
from features.errors import FeatureError
from hep_core.input_errors import InputFileError
from hep_core.integrity import DamagedOutputError
from ingestion.conflicts import tree_identity
from ingestion.file_info import FileInfo
from ingestion.notes import problems_of_content
from ingestion.settings import IngestSettings
from pipeline.runs.seen_events import count_seen_of_files
from pipeline.scoring import EventClassifier
from pipeline.scoring_advice import MODEL_DECIDES

#: Errors of features that are gone, wholly or in part, or whose storage is out of reach.
_UNREADABLE_FEATURES: Final = (
    DamagedOutputError,
    FeatureError,
    FileNotFoundError,
    InputFileError,
)


def training_note(
    classifier: EventClassifier, infos: Sequence[FileInfo], settings: IngestSettings
) -> str:
    """Return a sentence if the model was trained on events of these files; else an empty text.

    Without the features of its training nothing is known. Scores do not need them, so they may be
    removed after the model was loaded. Copies of events in other files do not count.

    Args:
        classifier: The model.
        infos: The files.
        settings: How they are read.
    """
    if classifier.dataset is None:
        return ""
    identities = []
    for info in infos:
        # In a training, the identity of a file also holds the tree if its sample names one.
        identities += [info.uuid, tree_identity(info.uuid, settings.tree_name)]
    try:
        num_seen = count_seen_of_files(FeatureDataset.load(classifier.dataset), identities)
    except _UNREADABLE_FEATURES:
        return ""
    if not num_seen:
        return ""
    return (
        f"{classifier.name} was trained on {num_seen} events of these files; their scores are "
        "better than those of new events"
    )


def content_notes(counts_of_files: Sequence[Mapping[str, int]]) -> list[str]:
    """Return what looks wrong in the events, such as momenta in MeV, as `ingest` notes it.

    Where `ingest` advises keys of the config, a last note says that the model decides.

    Args:
        counts_of_files: Numbers of events of each file by step of ingest and unusual content; see
            `ingestion.tally`.
    """
    counts: Counter[str] = Counter()
    for counts_of_file in counts_of_files:
        counts.update(counts_of_file)
    problems = list(problems_of_content({"the files": counts}))
    notes = [problem.text for problem in problems]
    if any(problem.config_remedy for problem in problems):
        notes.append(MODEL_DECIDES)
    return notes
