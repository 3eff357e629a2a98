"""All methods: each module of this folder that has a class with `@algorithm`. It imports no torch.

To add a method, write its file with its settings, its traits and its class.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache, reduce
from operator import or_
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    TypeAdapter,
)
from pydantic_core import CoreSchema

import training.algorithms
from training.algorithms.method import METHODS, MethodSettings
from training.algorithms.slowmo import SlowMo, SlowMoSettings
from training.algorithms.stale_synchronous import StaleSynchronous

#: METHODS is complete only after this import. The other names are offered here, since importers of
#: their modules would depend on code that only some configs run (`pipeline.runs.code_meaning`).
__all__ = ["METHODS", "AnyMethod", "SlowMo", "SlowMoSettings", "StaleSynchronous"]

for _module in pkgutil.iter_modules(training.algorithms.__path__, "training.algorithms."):
    if _module.name != __name__:
        importlib.import_module(_module.name)


def _method_union() -> TypeAdapter[MethodSettings]:
    """Return a validator of the settings of any method; the key `name` selects the method."""
    return _union_of_methods(tuple(METHODS))


# Plugins add methods, and each union takes long to build.
@lru_cache(maxsize=1)
def _union_of_methods(names: tuple[str, ...]) -> TypeAdapter[MethodSettings]:
    """Return a validator of the settings of these methods, which the key `name` tells apart."""
    # This is the type `A | B | ...` of all classes of settings.
    union: Any = reduce(or_, [METHODS[name].settings for name in names])
    return TypeAdapter(Annotated[union, Field(discriminator="name")])


def _validate_method(section: Any) -> MethodSettings:
    """Return the settings of `train.algorithm`; a name alone means the method with its defaults."""
    if isinstance(section, str):
        section = {"name": section}
    return _method_union().validate_python(section)


class _UnionSchema:
    """Gives the field the JSON schema of the union, with the methods of plugins."""

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(_method_union().core_schema)


AnyMethod = Annotated[
    SerializeAsAny[MethodSettings], BeforeValidator(_validate_method), _UnionSchema()
]
"""Settings of one of the methods."""
