"""The command `hep-pipeline`, and what notebooks and other programs import: `from hep_pipeline import load_run`.

The name of this module is unique. Those of our packages are not: a folder may have a `features.py` of its own.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.api import (
        EventClassifier,
        FeatureSettings,
        Run,
        current_model,
        features_of,
        load_classifier,
        load_run,
        predict,
    )

__all__ = [
    "EventClassifier",
    "FeatureSettings",
    "Run",
    "current_model",
    "features_of",
    "load_classifier",
    "load_run",
    "predict",
]

_ROOT = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - loads nothing
_PACKAGES = ("hep_core", "ingestion", "features", "models", "training", "pipeline")


def main() -> None:
    """Run the command line of the packages beside this file, not of others of these names in PYTHONPATH."""
    sys.path.insert(0, _ROOT)
    from pipeline.__main__ import main as run  # noqa: PLC0415 - the path is right only now

    run()


def __getattr__(name: str) -> Any:
    """What `pipeline.api` has, imported at its first use: the command line does not need it."""
    if name not in __all__:
        raise AttributeError(f"hep_pipeline has no '{name}', only {', '.join(__all__)}")
    _load_packages()
    return getattr(import_module("pipeline.api"), name)


def _load_packages() -> None:
    """Load the packages beside this file, whatever has their names in the current folder.

    Raises:
        ImportError: The program has loaded another module of such a name.
    """
    for name in _PACKAGES:
        loaded = sys.modules.get(name)
        if loaded is None:
            spec = PathFinder.find_spec(name, [_ROOT])
            if spec is None or spec.loader is None:
                raise ImportError(
                    f"the package '{name}' is not beside {__file__}. Install hep_pipeline again."
                )
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        elif _ROOT not in map(
            os.path.dirname, loaded.__path__ if hasattr(loaded, "__path__") else ()
        ):
            where = getattr(loaded, "__file__", None) or name
            raise ImportError(
                f"hep_pipeline has a package '{name}', and the program has imported {where} under that name. "
                f"Rename that module."
            )


if __name__ == "__main__":
    main()
