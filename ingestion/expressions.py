"""What weights, labels and pass-through columns are read from: branches, numbers of lists, conditions on them."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

#: Begin of the names of columns that conditions compare.
LABEL_PREFIX: Final = "_label_by_"
#: Conditions by their words, each with the class of its events; None for events to leave out.
LabelBy = Mapping[str, int | None]


class ColumnSource(NamedTuple):
    """What a weight, a label or a pass-through column is read from."""

    branch: str
    number: int | None = None
    """Which number of a list per event, from 0; None if the branch has one number per event."""
    is_factor: bool = False
    """Whether the numbers are factors of the sample's weight."""

    @property
    def words(self) -> str:
        """The branch, and the number of a list, as the config names them."""
        return self.branch if self.number is None else f"{self.branch}[{self.number}]"

    @classmethod
    def of_weight(cls, words: str) -> Self:
        """A value of `ingest.weights`, or of `weight` of a sample.

        Examples:
            >>> ColumnSource.of_weight("WeightLHEF.Weight[7]")
            ColumnSource(branch='WeightLHEF.Weight', number=7, is_factor=False)
            >>> ColumnSource.of_weight("weight*LHEScaleWeight[0]")
            ColumnSource(branch='LHEScaleWeight', number=0, is_factor=True)
        """
        name = re.sub(r"^weight *\* *", "", words)
        if listed := re.fullmatch(r"([^\[]*)\[(\d+)\]", name):
            return cls(listed[1], int(listed[2]), is_factor=name != words)
        return cls(name, is_factor=name != words)


class LabelRule(NamedTuple):
    """The classes of events by conditions."""

    sources: dict[str, ColumnSource]
    """What the conditions compare, by the name of its column."""
    conditions: dict[str, int | None]
    """Conditions on these columns, each with its class."""

    @classmethod
    def of(cls, label_by: LabelBy) -> Self:
        """The rule of a sample.

        Raises:
            ValueError: A condition cannot be read, or is none.

        Examples:
            >>> LabelRule.of({"abs(Top.flavour[0]) == 5": 1}).conditions
            {'abs(_label_by_0) == 5': 1}
        """
        columns: dict[str, str] = {}
        conditions = {}
        for words, label in label_by.items():
            reason = "it is neither true nor false for each event"
            try:
                found = ast.unparse(_Columns(columns).visit(ast.parse(words.strip(), mode="eval")))
                of_events = _holds(found, {column: np.ones(2, np.int64) for column in columns.values()})
                is_condition = of_events.shape == (2,) and of_events.dtype == np.bool_
            # What pandas and ast raise about words has no common class.
            except Exception as cause:  # noqa: BLE001
                is_condition, reason = False, str(cause)
            if not is_condition:
                raise ValueError(
                    f"label_by: '{words}' is no condition on branches ({reason}). Write one such as "
                    f"`abs(flavour) == 5`, `flavours[0] in [4, 5]` or `num_b > 1 and not is_tau == 1`"
                )
            conditions[found] = label
        return cls({column: ColumnSource.of_weight(words) for words, column in columns.items()}, conditions)

    def labels(self, columns: Mapping[str, NDArray[np.generic]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(num_events,) class of each event, -1 for None, and how many of the conditions hold for it.

        For an event with a number that is not finite none holds.
        """
        finite = np.all([np.isfinite(each) for each in columns.values()], axis=0)
        held = np.stack([_holds(each, columns) & finite for each in self.conditions])
        values = np.array([-1 if each is None else each for each in self.conditions.values()])
        return values[held.argmax(axis=0)], held.sum(axis=0)


class _Columns(ast.NodeTransformer):
    """Replaces branches, and numbers of lists, by columns."""

    def __init__(self, columns: dict[str, str]) -> None:
        self._columns = columns

    def _column(self, node: ast.expr) -> ast.expr:
        return ast.Name(self._columns.setdefault(ast.unparse(node), f"{LABEL_PREFIX}{len(self._columns)}"))

    visit_Name = visit_Attribute = visit_Subscript = _column  # noqa: N815 - names of ast

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """The name of a function is no branch; methods of what a function gives could write files."""
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise TypeError(f"{ast.unparse(node)} is no function of numbers")
        node.args = [self.visit(each) for each in node.args]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """True and true would add up to true."""
        is_arithmetic = not isinstance(node.op, ast.BitAnd | ast.BitOr)
        if is_arithmetic and any(isinstance(each, ast.Compare | ast.BoolOp) for each in (node.left, node.right)):
            raise TypeError("a comparison is no number to calculate with")
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """A word would never equal a number."""
        if not isinstance(node.value, int | float):
            raise TypeError(f"{node.value!r} is no number")
        return node


def _holds(condition: str, columns: Mapping[str, NDArray[np.generic]]) -> NDArray[np.bool_]:
    """(num_events,) values of a condition on columns; pandas knows comparisons, arithmetic and functions alone."""
    import pandas as pd  # noqa: PLC0415 - few configs have conditions, and all start quickly

    series = {name: pd.Series(each) for name, each in columns.items()}
    return np.asarray(pd.eval(condition, engine="python", local_dict=series, global_dict={}))


def samples_in(name: str, label: int | None, label_by: LabelBy) -> dict[str, int | None]:
    """What the events of a sample are called, with their class: `label_by` makes a sample of each class.

    Those without a class, None, keep the name.

    Examples:
        >>> samples_in("top", None, {"flavour == 5": 1, "flavour == 4": 0, "flavour < 4": None})
        {'top.0': 0, 'top.1': 1, 'top': None}
    """
    if not label_by:
        return {name: label}
    classes = sorted({each for each in label_by.values() if each is not None})
    return {f"{name}.{each}": each for each in classes} | ({name: None} if None in label_by.values() else {})
