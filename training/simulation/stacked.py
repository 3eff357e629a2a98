"""Computes gradients of many virtual workers together: stacked parameters, batched matrix products."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from typing_extensions import override

from training.flat_model import VectorModel
from training.readers.memory_rows import MemoryRows
from training.readers.sharding import EpochPlan, step_bounds
from training.simulation.cluster import ComputeTimes
from training.simulation.virtual_time import VirtualClock, VirtualTask, suspend
from training.transports.transport import Vector
from training.workloads.sums import Sums, sums_of, weighted_losses
from training.workloads.work import ValidationShare, Work

#: Highest number of workers in one batched product; more do not fit into the cache.
_CHUNK: Final = 512
_VALIDATED_AT_ONCE: Final = 2048


class StackedModels:
    """The parameters of all virtual workers as rows of one matrix, their gradients as rows of another.

    Args:
        module: The network; every worker starts with its parameters.
        world_size: Number of workers.
    """

    def __init__(self, module: nn.Module, world_size: int) -> None:
        self.module = module
        self._shapes = [(name, value.shape, value.numel()) for name, value in module.named_parameters()]
        vector = torch.cat([value.detach().reshape(-1) for value in module.parameters()])
        self.parameters = vector.repeat(world_size, 1)
        """(world_size, num_parameters)."""
        self.gradients = torch.zeros_like(self.parameters)
        """(world_size, num_parameters)."""
        # The fused kernels of recurrent layers have no batched form, so compute one worker after the other.
        self._can_stack = not any(isinstance(layer, nn.RNNBase) for layer in module.modules())
        self._batched = vmap(grad(self._loss, has_aux=True))

    def _loss(
        self, parameters: dict[str, Tensor], inputs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scale: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        logits = functional_call(self.module, parameters, inputs)
        losses = weighted_losses(logits, labels, weights)
        return losses.sum() * scale, (losses.detach(), logits.detach())

    def named(self, parameters: Tensor) -> dict[str, Tensor]:
        """The network's tensors as views of a matrix or vector of parameters, with its leading shape."""
        found, start = {}, 0
        for name, shape, size in self._shapes:
            found[name] = parameters[..., start : start + size].reshape(*parameters.shape[:-1], *shape)
            start += size
        return found

    def compute(
        self, ranks: list[int], inputs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, sizes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradients of some workers at their parameters, into `gradients`.

        Args:
            ranks: Ranks of k workers, in ascending order.
            inputs: Input columns (k, batch, ...); batches shorter than the longest are padded.
            labels: (k, batch) classes.
            weights: (k, batch) weights, 0 for padding.
            sizes: (k,) number of events of each batch.

        Returns:
            Weighted losses (k, batch) and logits (k, batch, num_classes).
        """
        # Consecutive workers are a view, others a copy.
        in_a_row = ranks[-1] - ranks[0] == len(ranks) - 1
        index: slice | Tensor = slice(ranks[0], ranks[-1] + 1) if in_a_row else torch.tensor(ranks)
        chosen = self.named(self.parameters[index])
        scales = 1.0 / sizes
        if self._can_stack:
            gradients, outputs = self._batched(chosen, inputs, labels, weights, scales)
        else:
            gradients, outputs = self._one_by_one(chosen, inputs, labels, weights, scales)
        start = 0
        for name, _, size in self._shapes:
            self.gradients[index, start : start + size] = gradients[name].reshape(len(ranks), size)
            start += size
        losses, logits = outputs
        return losses, logits

    def _one_by_one(
        self, chosen: dict[str, Tensor], inputs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scales: Tensor
    ) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
        found: dict[str, list[Tensor]] = {name: [] for name, _, _ in self._shapes}
        all_losses, all_logits = [], []
        for k in range(len(labels)):
            parameters = {name: values[k].detach().requires_grad_() for name, values in chosen.items()}
            loss, (losses, logits) = self._loss(
                parameters, tuple(column[k] for column in inputs), labels[k], weights[k], scales[k]
            )
            for name, gradient in zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True):
                found[name].append(gradient)
            all_losses.append(losses)
            all_logits.append(logits)
        gradients = {name: torch.stack(parts) for name, parts in found.items()}
        return gradients, (torch.stack(all_losses), torch.stack(all_logits))


class RowModel(VectorModel):
    """One worker's rows of the stacked models."""

    def __init__(self, stacked: StackedModels, rank: int) -> None:
        self.flat = nn.Parameter(stacked.parameters[rank], requires_grad=False)
        self._gradient = stacked.gradients[rank]
        self.flat.grad = self._gradient
        self._host_parameters = self.flat.numpy()
        self._host_gradient = self._gradient.numpy()

    @override
    def empty(self) -> Vector:
        return np.empty_like(self._host_parameters)

    @override
    def read(self, out: Vector) -> None:
        np.copyto(out, self._host_parameters)

    @override
    def write(self, values: Vector) -> None:
        np.copyto(self._host_parameters, values)

    @override
    def read_gradient(self, out: Vector) -> None:
        np.copyto(out, self._host_gradient)

    @override
    def write_gradient(self, values: Vector) -> None:
        np.copyto(self._host_gradient, values)

    @override
    def gradient_is_finite(self) -> bool:
        with np.errstate(over="ignore", invalid="ignore"):
            return math.isfinite(np.dot(self._host_gradient, self._host_gradient))


class MeanModelEvaluator:
    """Evaluates the gradients of all computing workers together, when the first one is needed.

    A worker's parameters and batch do not change while it computes, so the gradient may be evaluated at any time within
    this period.

    Args:
        clock: The virtual clock.
        stacked: All models.
        train: Rows of the training split.
        val: Rows of the validation split.
    """

    def __init__(self, clock: VirtualClock, stacked: StackedModels, train: MemoryRows, val: MemoryRows) -> None:
        self.clock = clock
        self._stacked = stacked
        self.train = train
        self._val = val
        self._pending: dict[int, Vector] = {}
        world_size = len(stacked.parameters)
        self.sums = np.zeros((world_size, 4))
        """Sums of each worker: loss, weight, correct, samples."""

    async def gradient(self, rank: int, rows: Vector, seconds: float) -> None:
        """Let a worker compute on some rows, for some virtual time."""

        def begin(task: VirtualTask) -> None:
            self._pending[rank] = rows

            def finish() -> None:
                if rank in self._pending:
                    self._evaluate()
                task.resume()

            self.clock.at(self.clock.now + seconds, finish)

        await suspend(begin)

    def _evaluate(self) -> None:
        ranks = sorted(self._pending)
        for start in range(0, len(ranks), _CHUNK):
            self._evaluate_some(ranks[start : start + _CHUNK])
        self._pending.clear()

    def _evaluate_some(self, ranks: list[int]) -> None:
        pending = [self._pending[rank] for rank in ranks]
        sizes = np.array([len(rows) for rows in pending])
        longest = int(sizes.max())
        if sizes.min() < longest:
            # Short batches are padded with their own events, since 0 times a number that is not finite is not 0.
            pending = [np.resize(rows, longest) for rows in pending]
        rows = np.concatenate(pending).reshape(len(ranks), longest)
        batch = self.train.batch(rows.ravel())
        inputs = tuple(column.view(*rows.shape, *column.shape[1:]) for column in batch.inputs)
        labels, weights = batch.labels.view(rows.shape), batch.weights.view(rows.shape)
        if sizes.min() < longest:
            weights = weights * torch.from_numpy(np.arange(longest) < sizes[:, None])
        losses, logits = self._stacked.compute(
            ranks, inputs, labels, weights, torch.from_numpy(sizes).to(weights.dtype)
        )
        correct = (logits.argmax(dim=2) == labels) * weights
        self.sums[ranks, 0] += losses.sum(dim=1).numpy()
        self.sums[ranks, 1] += weights.sum(dim=1).numpy()
        self.sums[ranks, 2] += correct.sum(dim=1).numpy()
        self.sums[ranks, 3] += sizes

    def validate(self, parameters: Vector) -> Sums:
        """Sums over the whole validation split."""
        sums = Sums()
        with torch.inference_mode():
            named = self._stacked.named(torch.from_numpy(parameters))
            for start in range(0, len(self._val), _VALIDATED_AT_ONCE):
                batch = self._val.batch(np.arange(start, min(start + _VALIDATED_AT_ONCE, len(self._val))))
                logits = functional_call(self._stacked.module, named, batch.inputs)
                sums = sums.plus(sums_of(logits, batch.labels, batch.weights))
        return sums


class StackedWork(Work):
    """One virtual worker's computation.

    Args:
        evaluator: The evaluator of all workers.
        model: This worker's rows.
        rank: Rank of the worker.
        times: Computing times of its steps.
        validates_alone: Whether it also evaluates its own model at the end.
    """

    model: RowModel

    def __init__(
        self, evaluator: MeanModelEvaluator, model: RowModel, *, rank: int, times: ComputeTimes, validates_alone: bool
    ) -> None:
        self.model = model
        self._evaluator = evaluator
        self._rank = rank
        self._times = times
        self._validates_alone = validates_alone
        self._order: Vector = np.empty(0, dtype=np.int64)
        self._bounds: list[int] = [0]
        self._step = 0
        self._rows: Vector = self._order

    @override
    def begin_epoch(self, plan: EpochPlan, *, epoch: int, first_step: int) -> None:
        self._order = self._evaluator.train.row_order(plan, rank=self._rank, epoch=epoch)
        self._bounds = step_bounds(len(self._order), plan.num_steps).tolist()
        self._step = first_step

    @override
    def next_batch(self) -> int:
        start = self._bounds[self._step]
        self._step += 1
        stop = self._bounds[self._step]
        self._rows = self._order[start:stop]
        return stop - start

    @override
    async def compute_gradient(self) -> None:
        await self._evaluator.gradient(self._rank, self._rows, self._times.draw(len(self._rows)))

    @override
    def take_sums(self) -> Sums:
        sums = self.sums_so_far()
        self._evaluator.sums[self._rank] = 0
        return sums

    @override
    def sums_so_far(self) -> Sums:
        loss, weight, correct, samples = self._evaluator.sums[self._rank].tolist()
        return Sums(loss, weight, correct, round(samples))

    @override
    async def validate(self, parameters: Vector, share: ValidationShare) -> Sums:
        """Validate in no virtual time; the first worker evaluates the shares of all."""
        if share.part or (share.num_parts == 1 and not self._validates_alone):
            return Sums()
        return self._evaluator.validate(parameters)

    @override
    def state(self) -> dict[str, Any]:
        return {"times": self._times.state(), "now": self._evaluator.clock.now}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        self._times.load_state(state["times"])
