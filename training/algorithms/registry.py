"""All methods: every module of this folder that has a class with `@algorithm`. No torch.

To add a method, write its file: its settings, its traits, its class.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import BeforeValidator, Field

import training.algorithms
from training.algorithms.method import METHODS, MethodSettings
from training.algorithms.slowmo import SlowMo, SlowMoSettings
from training.algorithms.stale_synchronous import StaleSynchronous

#: Passed on to other modules: METHODS since it is complete after this import only; the others since whoever imports
#: their modules depends on code that only some configs run (see `REGISTRIES` of `pipeline.runs.code_meaning`).
__all__ = ["METHODS", "AnyMethod", "SlowMo", "SlowMoSettings", "StaleSynchronous", "any_method"]

for _module in pkgutil.iter_modules(training.algorithms.__path__, "training.algorithms."):
    if _module.name != __name__:
        importlib.import_module(_module.name)


def _as_section(value: Any) -> Any:
    """The name alone stands for the method with its defaults."""
    return {"name": value} if isinstance(value, str) else value


def any_method() -> Any:
    """The settings of one of the methods, those of plugins too."""
    return Union[tuple(method.settings for method in METHODS.values())]  # noqa: UP007 - a union of a list


if TYPE_CHECKING:
    AnyMethod = MethodSettings
else:
    AnyMethod = Annotated[any_method(), Field(discriminator="name"), BeforeValidator(_as_section)]
