"""Muon of torch over the vector of a model: the optimiser on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from typing_extensions import override

from training.algorithms.base import VectorModel
from training.compiled.muon import MOMENTUM, hidden_matrices
from training.settings import TrainSettings


class _Segment(NamedTuple):
    """A part of a vector that is one parameter of an optimiser."""

    elements: slice
    shape: tuple[int, ...]

    def view(self, vector: Tensor) -> Tensor:
        """Return this part of a vector in its shape; it shares the memory of the vector."""
        return vector[self.elements].view(self.shape)


class TorchMuon(Optimizer):
    """Takes `torch.optim.Muon` for the matrices of a vector, and AdamW for its other parts.

    Torch rounds the orthogonal factors to bfloat16. The state is that of AdamW over the vector,
    whose first moment holds the momentum of the matrices, as in `MuonOptimizer`.

    Args:
        model: Parameters with their gradient, and the shapes of its layers.
        settings: Learning rate and weight decay.

    Raises:
        NoMatrixError: The network has no matrix before its last layer.
    """

    def __init__(self, model: VectorModel, settings: TrainSettings) -> None:
        rate, decay = settings.effective_learning_rate, settings.weight_decay
        self._flat = model.flat
        super().__init__([self._flat], {"lr": rate, "weight_decay": decay})
        zeros = torch.zeros_like(self._flat.detach())
        self._state = {"step": torch.zeros(()), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        self.state[self._flat] = self._state

        matrices, vectors = _divide(model)
        self._muon = Muon(
            [self._parameter(matrix) for matrix in matrices],
            lr=rate,
            weight_decay=decay,
            momentum=MOMENTUM,
            adjust_lr_fn="match_rms_adamw",
        )
        self._adamw = AdamW(
            [self._parameter(vector) for vector in vectors], lr=rate, weight_decay=decay
        )
        self._share_moments(matrices, vectors)

    def _parameter(self, segment: _Segment) -> nn.Parameter:
        """Return a part of the vector as a parameter that shares its memory."""
        gradient = self._flat.grad
        if gradient is None:
            raise AssertionError("the vector has no gradient")
        parameter = nn.Parameter(segment.view(self._flat.detach()), requires_grad=False)
        parameter.grad = segment.view(gradient)
        return parameter

    def _share_moments(self, matrices: Sequence[_Segment], vectors: Sequence[_Segment]) -> None:
        """Make the moments of both optimisers parts of the moments of the vector."""
        first, second = self._state["exp_avg"], self._state["exp_avg_sq"]
        matrix_parameters = self._muon.param_groups[0]["params"]
        for parameter, matrix in zip(matrix_parameters, matrices, strict=True):
            self._muon.state[parameter] = {"momentum_buffer": matrix.view(first)}
        vector_parameters = self._adamw.param_groups[0]["params"]
        for parameter, vector in zip(vector_parameters, vectors, strict=True):
            self._adamw.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": vector.view(first),
                "exp_avg_sq": vector.view(second),
            }

    @override
    def step(self, closure: Any = None) -> Any:
        """Take one step: change parameters and moments in place, by the present gradient."""
        for optimizer in (self._muon, self._adamw):
            optimizer.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        # A reset or a checkpoint may have changed the number of steps.
        for state in self._adamw.state.values():
            state["step"].copy_(self._state["step"])
        self._muon.step()
        self._adamw.step()
        self._state["step"] += 1

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Overwrite moments, number of steps and learning rate by the content of `state_dict`."""
        for name, tensor in state_dict["state"][0].items():
            self._state[name].copy_(tensor)
        self.param_groups[0]["lr"] = state_dict["param_groups"][0]["lr"]


def _divide(model: VectorModel) -> tuple[list[_Segment], list[_Segment]]:
    """Return the parts of a model's vector: the matrices for Muon, and what lies between them."""
    matrices: list[_Segment] = []
    # Start and end of what lies before each matrix, and behind the last one.
    bounds: list[tuple[int, int]] = []
    position = 0
    for start, num_rows, num_columns in hidden_matrices(model.shapes).tolist():
        stop = start + num_rows * num_columns
        matrices.append(_Segment(slice(start, stop), (num_rows, num_columns)))
        bounds.append((position, start))
        position = stop
    bounds.append((position, model.flat.numel()))

    vectors: list[_Segment] = []
    for start, stop in bounds:
        # Two matrices may follow each other directly.
        if start < stop:
            vectors.append(_Segment(slice(start, stop), (stop - start,)))
    return matrices, vectors
