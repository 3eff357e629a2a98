"""What a user may choose about the network."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

ModelName = Literal["hlf", "particles", "inclusive"]


class ModelSettings(BaseModel):
    """The network to train; each takes the keys that concern it and leaves the others alone."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    name: ModelName = "hlf"
    """`hlf`: a multilayer perceptron on the 14 high-level features. `particles`: a recurrent network (GRU) over the
    particle list. `inclusive`: both together."""
    hidden: list[PositiveInt] = Field(default=[50, 20, 10], min_length=1)
    """`hlf`: widths of its hidden layers; 50, 20, 10 is CERN's network, 50, 20 the text of the thesis."""
    gru_width: PositiveInt = 50
    """`particles`, `inclusive`: width of the GRU's state, which sums up the particle list."""
    dense_width: PositiveInt = 25
    """`inclusive`: width of the hidden layer over the GRU's state and the high-level features."""
