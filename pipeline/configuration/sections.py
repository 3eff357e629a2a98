"""Sections of the config that are one of several kinds, such as the methods of `train.algorithm`."""

from __future__ import annotations

from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pipeline.errors import nearest


def kinds_of(field: FieldInfo) -> dict[str, type[BaseModel]]:
    """The kinds of a section by the value of their key `field.discriminator`; none if it has only one kind."""
    if not isinstance(field.discriminator, str):
        return {}
    return {get_args(kind.model_fields[field.discriminator].annotation)[0]: kind for kind in get_args(field.annotation)}


def advice(key: str, section: type[BaseModel], *, prefix: str = "") -> str:
    """What may be meant by a key that a section lacks: a key of one of its kinds of sections, or a name like it.

    Args:
        key: The unknown key.
        section: The section.
        prefix: Keys of the section, with a dot at the end.

    Examples:
        >>> from training.settings import TrainSettings
        >>> advice("exchange", TrainSettings, prefix="train.")
        " 'train.algorithm.exchange' is a key of ad-psgd, swarm-sgd."
        >>> advice("epoch", TrainSettings)
        " Did you mean 'epochs'?"
    """
    for name, field in section.model_fields.items():
        having = [kind for kind, model in kinds_of(field).items() if key in model.model_fields]
        if having:
            return f" '{prefix}{name}.{key}' is a key of {', '.join(having)}."
    return nearest(key, section.model_fields)
