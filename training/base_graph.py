"""The base-(k+1) graph: a sequence of sparse graphs with an exact average at its end (Takezawa et al. 2023).

Each step links a worker to at most k others. The product of the mixing matrices is 1/n for any number n of workers,
after at most 2 log_{k+1}(n) + 2 steps. This is their Algorithm 3, the base-(k+1) graph, which includes Algorithm 2, the
simple one, wherever that is shorter.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Links = dict[tuple[int, int], float]
"""Weights of pairs of workers in one step."""
_Nodes = NDArray[Any]


def base_graph(num_nodes: int, degree: int) -> list[Links]:
    """Links of each step, with at most `degree` of them at a node.

    n = p q, where all prime factors of p are at most k+1: simple graphs of q nodes, then hypercubes across them.

    Examples:
        >>> base_graph(3, 1)
        [{(0, 1): 0.5}, {(0, 2): 0.6666666666666666}, {(0, 1): 0.5}]
        >>> [len(base_graph(24, degree)) for degree in (1, 2, 3)]
        [6, 4, 3]
    """
    nodes = np.arange(num_nodes)
    alone = _simple(nodes, degree)
    across = int(np.prod(_factors(num_nodes, degree + 1)[0], dtype=np.int64))
    parts = nodes.reshape(across, -1)
    inside = _side_by_side(_simple(part, degree) for part in parts)
    composed = inside + _side_by_side(_cube(part, degree) for part in parts.T)
    return min(alone, composed, key=len) or [{}]


def _simple(nodes: _Nodes, degree: int) -> list[Links]:
    """The simple base-(k+1) graph (Algorithm 2).

    With n = sum_l a_l (k+1)^p_l, part l has a_l blocks of (k+1)^p_l nodes. First each part gets its own average. Then
    part after part gives its average to all later nodes, each of which meets one node of each block. A block then has
    the average of all in its mean, and a hypercube spreads it.
    """
    parts = _parts(nodes, degree + 1)
    if _factors(len(nodes), degree + 1)[1] == 1:
        return _cube(nodes, degree)
    rounds = _side_by_side(_cube(part.ravel(), degree) for part in parts)
    first = len(rounds)
    # The first part has the largest blocks, so that its hypercubes end last.
    rounds += [{} for _ in range(1 + len(_cube(parts[0][0], degree)))]
    for number, blocks in enumerate(parts[:-1]):
        later = np.concatenate([part.ravel() for part in parts[number + 1 :]])
        weight = blocks.shape[1] / (blocks.size + len(later))
        for block in blocks:
            pairs = zip(block.tolist(), later.tolist(), strict=False)
            rounds[first + number] |= dict.fromkeys(pairs, weight)
            for step, links in enumerate(_cube(block, degree), first + number + 1):
                rounds[step] |= links
    return rounds


def _parts(nodes: _Nodes, base: int) -> list[_Nodes]:
    """The nodes by the digits of their number in a base: blocks (digit, base^place) of each digit that is not 0."""
    found, start = [], 0
    for place in reversed(range(len(np.base_repr(len(nodes), base)))):
        size = base**place
        digit = (len(nodes) - start) // size
        if digit:
            found.append(nodes[start : start + digit * size].reshape(digit, size))
            start += digit * size
    return found


def _cube(nodes: _Nodes, degree: int) -> list[Links]:
    """The hyper-hypercube (Algorithm 1): in each step, the nodes that differ in one digit get their average."""
    rounds, stride = [], 1
    for factor in _factors(len(nodes), degree + 1)[0]:
        groups = nodes.reshape(-1, factor, stride).swapaxes(1, 2).reshape(-1, factor)
        rounds.append({pair: 1 / factor for group in groups.tolist() for pair in combinations(group, 2)})
        stride *= factor
    return rounds


def _factors(number: int, most: int) -> tuple[list[int], int]:
    """Factors of a number, each at most `most`, as few as possible; and the rest, which has none."""
    found = []
    for factor in range(most, 1, -1):
        while number % factor == 0:
            found.append(factor)
            number //= factor
    return found, number


def _side_by_side(sequences: Iterable[list[Links]]) -> list[Links]:
    """Sequences of disjoint sets of nodes as one; the shorter ones rest at their end."""
    rounds: list[Links] = []
    for sequence in sequences:
        rounds += [{} for _ in range(len(sequence) - len(rounds))]
        for step, links in enumerate(sequence):
            rounds[step] |= links
    return rounds
