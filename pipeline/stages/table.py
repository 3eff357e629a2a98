"""The table of all stages."""

from __future__ import annotations

from typing import Final

from hep_core.extensions import STAGES as EXTRA_STAGES
from hep_core.extensions import load_extensions
from pipeline.runs.version import Version
from pipeline.stages.base import Stage
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.export import Export
from pipeline.stages.features import Features
from pipeline.stages.gridsearch import GridSearch
from pipeline.stages.ingest import Ingest
from pipeline.stages.report import Report
from pipeline.stages.train import Train

#: All stages; each comes after the stages that it reads.
STAGES: Final[tuple[Stage, ...]] = (
    *load_extensions(EXTRA_STAGES),
    Ingest(),
    Features(),
    GridSearch(),
    Train(),
    Evaluate(),
    Export(),
    Report(),
)
STAGE_OF: Final = {stage.name: stage for stage in STAGES}


def content_read(reader: Stage, version: Version) -> str:
    """Return a digest of what a stage reads from a version of another stage.

    Keys that the other stage declares volatile, such as times, do not count.
    """
    return reader.content_read(version, STAGE_OF[version.manifest.stage].volatile)
