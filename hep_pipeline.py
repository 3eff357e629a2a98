"""The command `hep-pipeline`, and the interface for Python: `from hep_pipeline import load_run`.

The name of this module is unique. The names of our packages are not: a folder may have a
`features.py` of its own.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.api import *  # noqa: F403 - `pipeline.api.__all__` is the one list

_ROOT = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - loads nothing
_PACKAGES = ("hep_core", "ingestion", "features", "models", "training", "pipeline")


def main() -> None:
    """Run the command line of the packages beside this file, whatever PYTHONPATH holds.

    The folder of this file is put first in the search path of Python, and stays there.
    """
    sys.path.insert(0, _ROOT)
    from pipeline.__main__ import main as run  # noqa: PLC0415 - the path is right only now

    run()


def __getattr__(name: str) -> Any:
    """Return a name of `pipeline.api`, which is imported at its first use.

    The command line does not need that module. Python calls this for names that the module lacks.

    Raises:
        AttributeError: `pipeline.api` has no such public name.
    """
    # Python and tools ask for names such as `__path__`, which must import nothing.
    is_special = name.startswith("__") and name != "__all__"
    if not is_special:
        _load_packages()
        api = import_module("pipeline.api")
        if name == "__all__" or name in api.__all__:
            return getattr(api, name)
        raise AttributeError(f"hep_pipeline has no '{name}', only {', '.join(api.__all__)}")
    raise AttributeError(name)


def _load_packages() -> None:
    """Load the packages beside this file, whatever has their names in the current folder.

    Raises:
        ImportError: The program has loaded another module of such a name.
    """
    for name in _PACKAGES:
        loaded = sys.modules.get(name)
        if loaded is None:
            _load_package(name)
        elif not _is_ours(loaded):
            raise ImportError(
                f"hep_pipeline has a package '{name}', and the program has imported "
                f"{getattr(loaded, '__file__', name)} under that name. Rename that module."
            )


def _load_package(name: str) -> None:
    """Import a package from the folder of this file, and no other, under its name."""
    spec = PathFinder.find_spec(name, [_ROOT])
    if spec is None or spec.loader is None:
        raise ImportError(
            f"the package '{name}' is not beside {__file__}. Install hep_pipeline again."
        )
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def _is_ours(module: ModuleType) -> bool:
    """Return whether a loaded module is a package in the folder of this file."""
    folders = getattr(module, "__path__", ())
    return any(os.path.dirname(folder) == _ROOT for folder in folders)  # noqa: PTH120


if __name__ == "__main__":
    main()
