"""Muon on one vector: orthogonal updates of its matrices, AdamW for all other parameters.

Source: Jordan et al. 2024; Liu et al. 2025, section 2.2 (size of the updates).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from typing_extensions import override

from training.algorithms.base import VectorModel
from training.compiled.kernel import Array, Integers, kernel
from training.compiled.optimizer import Constants, VectorOptimizer, update
from training.errors import NoMatrixError
from training.settings import TrainSettings

#: Factor mu of the momentum of matrices, as in `torch.optim.Muon`.
MOMENTUM: Final = 0.95
#: Coefficients a, b, c of a Newton-Schulz step, and the number of steps.
_A: Final = 3.4445
_B: Final = -4.7750
_C: Final = 2.0315
_NUM_STEPS: Final = 5
#: Smallest norm by which a matrix is divided.
_SMALLEST_NORM: Final = 1e-7
#: Root mean square of an update, as of Adam's, so that both have the same learning rate.
_UPDATE_SIZE: Final = 0.2


def hidden_matrices(shapes: Sequence[Sequence[int]]) -> Integers:
    """Return the parts of a vector of parameters that Muon changes as matrices.

    They are the weights of all layers but the last one. The kernels of a convolution are a matrix
    with a row for each output channel. A matrix of one row or one column counts as a vector.

    `shapes`: the shapes of the parameters, in the order of the vector.

    Returns:
        (num_matrices, 3) start in the vector, number of rows, and number of columns.

    Raises:
        NoMatrixError: There is no such matrix.

    Examples:
        >>> hidden_matrices([(50, 14), (50,), (20, 50), (20,), (3, 20), (3,)]).tolist()
        [[0, 50, 14], [750, 20, 50]]
        >>> hidden_matrices([(50, 14), (50,), (20, 50), (20,), (1, 20), (1,)]).tolist()
        [[0, 50, 14], [750, 20, 50]]
    """
    layers = [index for index, shape in enumerate(shapes) if len(shape) > 1]
    hidden_layers = layers[:-1]
    matrices = []
    start = 0
    for index, shape in enumerate(shapes):
        size = math.prod(shape)
        if index in hidden_layers:
            num_rows = shape[0]
            num_columns = size // num_rows
            if min(num_rows, num_columns) > 1:
                matrices.append((start, num_rows, num_columns))
        start += size
    if not matrices:
        shape_texts = [" x ".join(map(str, shape)) for shape in shapes]
        raise NoMatrixError(
            f"train.optimizer: muon is for networks with matrices before their last layer, and "
            f"this one has none: its parameters are {', '.join(shape_texts)}. Use adamw, which "
            f"muon takes for all other parameters"
        )
    return np.array(matrices)


@kernel
def orthogonalize(matrix: Array) -> Array:
    """Return nearly the orthogonal factor U V^T of a matrix U S V^T, by Newton-Schulz steps.

    X <- a X + (b G + c G G) X with G = X X^T, from the matrix divided by its norm. These steps
    bring singular values above 0.003 of the norm between 0.68 and 1.21, and none exactly to 1.

    `matrix`: (num_rows, num_columns), stays as it is.
    """
    num_rows, num_columns = matrix.shape
    is_tall = num_rows > num_columns
    # The products are smallest with the shorter side first.
    factor = np.ascontiguousarray(matrix.T) if is_tall else matrix.copy()
    real = matrix.dtype.type
    a, b, c = real(_A), real(_B), real(_C)
    norm = math.sqrt((factor * factor).sum())
    factor *= real(1 / max(norm, _SMALLEST_NORM))
    for _ in range(_NUM_STEPS):
        gram = np.dot(factor, factor.T)
        gram_squared = np.dot(gram, gram)
        polynomial = b * gram + c * gram_squared
        factor = a * factor + np.dot(polynomial, factor)
    return np.ascontiguousarray(factor.T) if is_tall else factor


@kernel
def _update_matrix(
    parameters: Array, gradient: Array, momentum: Array, rate: float, weight_decay: float
) -> None:
    """Take one step of Muon with one matrix.

    B <- mu B + (1 - mu) G; W <- (1 - rate decay) W - rate size O, where O is the orthogonal factor
    of mu B + (1 - mu) G (Nesterov's momentum).

    Args:
        parameters: (num_rows, num_columns) W, is changed.
        gradient: (num_rows, num_columns) G, stays as it is.
        momentum: (num_rows, num_columns) B, is changed.
        rate: Learning rate.
        weight_decay: Factor of the decay of the weights.
    """
    real = parameters.dtype.type
    mu = real(MOMENTUM)
    one_minus_mu = real(1 - MOMENTUM)
    momentum += one_minus_mu * (gradient - momentum)
    nesterov = mu * momentum + one_minus_mu * gradient
    orthogonal = orthogonalize(nesterov)
    # An orthogonal factor has the root mean square 1 / sqrt(longer side).
    size = _UPDATE_SIZE * math.sqrt(max(parameters.shape))
    parameters *= real(1 - rate * weight_decay)
    parameters -= real(rate * size) * orthogonal


@kernel
def update_with_matrices(
    parameters: Array,
    gradient: Array,
    first: Array,
    second: Array,
    step: Array,
    rate: float,
    constants: Constants,
    matrices: Integers,
) -> None:
    """Take one step of Muon with some matrices, and one of `update` with all other parameters.

    `matrices`: (num_matrices, 3) from `hidden_matrices`, or none. The other arguments are those of
    `update`; `first` also holds the momentum of the matrices, and their part of `second` stays 0.
    """
    steps_so_far = step[0]
    # Everything up to here is updated.
    position = 0
    for k in range(len(matrices)):
        start, num_rows, num_columns = matrices[k, 0], matrices[k, 1], matrices[k, 2]
        stop = start + num_rows * num_columns
        _update_matrix(
            parameters[start:stop].reshape(num_rows, num_columns),
            gradient[start:stop].reshape(num_rows, num_columns),
            first[start:stop].reshape(num_rows, num_columns),
            rate,
            constants.weight_decay,
        )
        # The parameters between the last matrix and this one.
        update(
            parameters[position:start],
            gradient[position:start],
            first[position:start],
            second[position:start],
            step,
            rate,
            constants,
        )
        # All parameters take the same step of Adam.
        step[0] = steps_so_far
        position = stop
    update(
        parameters[position:],
        gradient[position:],
        first[position:],
        second[position:],
        step,
        rate,
        constants,
    )


@kernel
def update_matrices_by_array(
    parameters: Array,
    gradient: Array,
    first: Array,
    second: Array,
    step: Array,
    rate: float,
    constants: Array,
    matrices: Integers,
) -> None:
    """Call `update_with_matrices` with the constants from `constants_array`."""
    update_with_matrices(parameters, gradient, first, second, step, rate, constants[0], matrices)


class MuonOptimizer(VectorOptimizer):
    """Muon on one vector in host memory; its state has the names and tensors of AdamW's.

    Args:
        model: Parameters with their gradient, and the shapes of its layers.
        settings: Learning rate and weight decay.

    Raises:
        NoMatrixError: The network has no matrix before its last layer.
    """

    def __init__(self, model: VectorModel, settings: TrainSettings) -> None:
        super().__init__(model.flat, settings)
        self._matrices = hidden_matrices(model.shapes)

    @override
    def step(self) -> None:
        """Take one step: change parameters and moments in place, by the present gradient."""
        update_matrices_by_array(
            self._parameters,
            self._gradient,
            self._first,
            self._second,
            self._step,
            self.param_groups[0]["lr"],
            self._constants_array,
            self._matrices,
        )
