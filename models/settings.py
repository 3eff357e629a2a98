"""What a user may choose about the network."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt


class ModelSettings(BaseModel):
    """The network to train."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    name: Literal["hlf"] = "hlf"
    """`hlf`: a multilayer perceptron on the 14 high-level features."""
    hidden: list[PositiveInt] = Field(default=[50, 20, 10], min_length=1)
    """Widths of its hidden layers; 50, 20, 10 is CERN's network, 50, 20 the text of the thesis."""
