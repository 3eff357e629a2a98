"""Commands and stages that installed packages add by entry points.

`hep_pipeline.commands` names modules that declare commands with `pipeline.command_line.command`;
`hep_pipeline.stages` names stages that make input files, so that they come before all others.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Final

COMMANDS: Final = "hep_pipeline.commands"
STAGES: Final = "hep_pipeline.stages"


def load_extensions(group: str) -> list[Any]:
    """The objects that the entry points of a group name, in the order of their names.

    Raises:
        ImportError: The package of an entry point cannot be imported.
    """
    points = sorted(entry_points(group=group), key=lambda point: point.name)
    return [point.load() for point in points]
