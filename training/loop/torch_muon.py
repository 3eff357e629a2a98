"""Muon of torch over the vector of a model: the optimiser on a GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer
from typing_extensions import override

from training.algorithms.base import VectorModel
from training.compiled.muon import MOMENTUM, hidden_matrices
from training.settings import TrainSettings


class _Segment(NamedTuple):
    """A part of a vector that is one parameter of an optimiser."""

    elements: slice
    shape: tuple[int, ...]


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
            [self._view(segment) for segment in matrices],
            lr=rate,
            weight_decay=decay,
            momentum=MOMENTUM,
            adjust_lr_fn="match_rms_adamw",
        )
        self._adamw = AdamW(
            [self._view(segment) for segment in vectors], lr=rate, weight_decay=decay
        )
        # The moments of both are parts of those of the vector.
        first, second = self._state["exp_avg"], self._state["exp_avg_sq"]
        for parameter, segment in zip(self._muon.param_groups[0]["params"], matrices, strict=True):
            momentum = first[segment.elements].view(segment.shape)
            self._muon.state[parameter] = {"momentum_buffer": momentum}
        for parameter, segment in zip(self._adamw.param_groups[0]["params"], vectors, strict=True):
            self._adamw.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": first[segment.elements],
                "exp_avg_sq": second[segment.elements],
            }

    def _view(self, segment: _Segment) -> nn.Parameter:
        """Return a part of the vector as a parameter that shares its memory."""
        gradient = self._flat.grad
        if gradient is None:
            raise AssertionError("the vector has no gradient")
        values = self._flat.detach()[segment.elements].view(segment.shape)
        parameter = nn.Parameter(values, requires_grad=False)
        parameter.grad = gradient[segment.elements].view(segment.shape)
        return parameter

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
    matrices, vectors = [], []
    num_parameters = model.flat.numel()
    position = 0
    for start, num_rows, num_columns in hidden_matrices(model.shapes).tolist():
        stop = start + num_rows * num_columns
        vectors.append(_Segment(slice(position, start), (start - position,)))
        matrices.append(_Segment(slice(start, stop), (num_rows, num_columns)))
        position = stop
    vectors.append(_Segment(slice(position, num_parameters), (num_parameters - position,)))
    return matrices, [segment for segment in vectors if segment.shape[0]]
