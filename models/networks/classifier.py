"""The base class of all networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from models.inputs import input_tensors


class Classifier(nn.Module):
    """A network from raw features to logits (B, num_classes) of B events; feature scaling is its first layer.

    The loss takes logits; prediction applies the softmax. `models.saved_model.build` makes a network from its settings.
    `forward` takes the columns named by `inputs`, in that order, on one device:

    * `hlf`, (B, NUM_HLF): see `features.columns.HIGH_LEVEL`.
    * `particles`, (B, L, 19): see `features.columns.PARTICLE`; L is at least 1, and readers cut it to
      the longest event of the batch.
    * `num_particles`, (B,) int64: number of valid rows of `particles`, from the first; the other rows are padding.
    """

    #: Columns of the features Parquet that `forward` takes, in this order.
    inputs: ClassVar[tuple[str, ...]]

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Softmax of the logits, (num_events, num_classes), for columns as for `models.inputs.input_tensors`."""
        self.eval()
        weights = next(self.parameters())
        inputs = [tensor.to(weights.device) for tensor in input_tensors(columns, self.inputs, dtype=weights.dtype)]
        with torch.inference_mode():
            return np.asarray(torch.softmax(self(*inputs), dim=1).cpu().numpy(), dtype=np.float32)
