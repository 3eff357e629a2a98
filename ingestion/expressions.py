"""What weights, labels and pass-through columns are read from: branches, numbers of lists, conditions on them."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

#: Begin of the names of columns that conditions compare.
LABEL_PREFIX: Final = "_label_by_"
_UNARY: Final[dict[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.Not: operator.invert,
    ast.Invert: operator.invert,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_BINARY: Final[dict[type[ast.operator | ast.boolop], Callable[[Any, Any], Any]]] = {
    ast.And: operator.and_,
    ast.Or: operator.or_,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def _is_one_of(numbers: Any, choices: list[Any]) -> Any:
    return functools.reduce(operator.or_, [numbers == choice for choice in choices])


_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: _is_one_of,
    ast.NotIn: lambda numbers, choices: ~_is_one_of(numbers, choices),
}
_FUNCTIONS: Final = (
    *("abs", "sqrt", "exp", "expm1", "log", "log10", "log1p", "floor", "ceil"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "arctan2"),
    *("arcsinh", "arccosh", "arctanh"),
)
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
                # As in pandas, & and | bind as `and` and `or` do.
                plain = words.strip().replace("&", " and ").replace("|", " or ")
                found = ast.unparse(_Columns(columns).visit(ast.parse(plain, mode="eval")))
                # Of no events: whether a calculation has a result can depend on the numbers.
                of_events = _holds(
                    found, {column: np.empty(0, np.int64) for column in columns.values()}
                )
                is_condition = of_events.shape == (0,) and of_events.dtype == np.bool_
            # What Python and numpy raise about words has no common class.
            except Exception as cause:  # noqa: BLE001
                is_condition, reason = False, str(cause)
            if not is_condition:
                raise ValueError(
                    f"label_by: '{words}' is no condition on branches ({reason}). Write one such as "
                    f"`abs(flavour) == 5`, `flavours[0] in [4, 5]` or `num_b > 1 and not is_tau == 1`"
                )
            conditions[found] = label
        return cls(
            {column: ColumnSource.of_weight(words) for words, column in columns.items()}, conditions
        )

    def labels(
        self, columns: Mapping[str, NDArray[np.generic]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(num_events,) class of each event, -1 for None, and how many of the conditions hold for it.

        For an event with a number that is not finite none holds.
        """
        is_finite = np.ones(len(next(iter(columns.values()))), np.bool_)
        for numbers in columns.values():
            if numbers.dtype.kind == "f":
                is_finite &= np.isfinite(numbers)
        held = np.stack([_holds(condition, columns) & is_finite for condition in self.conditions])
        values = np.array([-1 if each is None else each for each in self.conditions.values()])
        return values[held.argmax(axis=0)], held.sum(axis=0)


class _Columns(ast.NodeTransformer):
    """Replaces branches, and numbers of lists, by columns."""

    def __init__(self, columns: dict[str, str]) -> None:
        self._columns = columns

    def _column(self, node: ast.expr) -> ast.expr:
        return ast.Name(
            self._columns.setdefault(ast.unparse(node), f"{LABEL_PREFIX}{len(self._columns)}")
        )

    visit_Name = visit_Attribute = visit_Subscript = _column  # noqa: N815 - names of ast

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """The name of a function is no branch; methods of what a function gives could write files."""
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise TypeError(f"{ast.unparse(node)} is no function of numbers")
        node.args = [self.visit(each) for each in node.args]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """True and true would add up to true."""
        if any(
            isinstance(operand, ast.Compare | ast.BoolOp) for operand in (node.left, node.right)
        ):
            raise TypeError("a comparison is no number to calculate with")
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """A word would never equal a number."""
        if not isinstance(node.value, int | float):
            raise TypeError(f"{node.value!r} is no number")
        return node


def _holds(condition: str, columns: Mapping[str, NDArray[np.generic]]) -> NDArray[np.bool_]:
    """(num_events,) values of a condition on columns."""
    calculator = _Calculator({name: exact(numbers) for name, numbers in columns.items()})
    # Infinity and NaN are results too.
    with np.errstate(all="ignore"):
        return np.asarray(calculator.visit(ast.parse(condition, mode="eval").body))


class _Calculator(ast.NodeVisitor):
    """Calculates an expression of columns, event by event.

    Integers are Python's own, so they are exact at any size; all real numbers are float64. Which of them a result is
    depends on the expression and the types of the branches alone, never on the numbers.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = columns

    def visit_Name(self, node: ast.Name) -> Any:
        """A column."""
        return self._columns[node.id]

    def visit_Constant(self, node: ast.Constant) -> Any:
        """A number."""
        return node.value

    def visit_List(self, node: ast.List | ast.Tuple) -> Any:
        """The choices of `in`."""
        return [self.visit(element) for element in node.elts]

    visit_Tuple = visit_List  # noqa: N815 - name of ast

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        """A sign or `not`."""
        return _UNARY[type(node.op)](self.visit(node.operand))

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        """Arithmetic; quotients and powers other than those by a number from 0 are real numbers."""
        left, right = self.visit(node.left), self.visit(node.right)
        is_exact = _is_integer(left) and _is_integer(right) and not isinstance(node.op, ast.Div)
        if isinstance(node.op, ast.Pow):
            is_exact = is_exact and isinstance(right, int) and right >= 0
        if not is_exact:
            left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
        return _BINARY[type(node.op)](left, right)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """`and` and `or`."""
        parts = [self.visit(part) for part in node.values]
        return functools.reduce(_BINARY[type(node.op)], parts)

    def visit_Compare(self, node: ast.Compare) -> Any:
        """A chain of comparisons."""
        left = self.visit(node.left)
        results = []
        for comparison, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.visit(comparator)
            results.append(_COMPARISONS[type(comparison)](left, right))
            left = right
        return functools.reduce(operator.and_, results)

    def visit_Call(self, node: ast.Call) -> Any:
        """A function; all but `abs` calculate with float64."""
        name = ast.unparse(node.func)
        if name not in _FUNCTIONS:
            raise TypeError(
                f"'{name}' is not a supported function; there are {', '.join(_FUNCTIONS)}"
            )
        arguments = [self.visit(argument) for argument in node.args]
        if name == "abs":
            return abs(*arguments)
        reals = [np.asarray(argument, np.float64) for argument in arguments]
        return getattr(np, name)(*reals)

    def generic_visit(self, node: ast.AST) -> Any:
        """Anything else is refused."""
        raise TypeError(f"{ast.unparse(node)} is no number")


def _is_integer(value: Any) -> bool:
    """Whether an operand is an integer, or an array of Python's integers."""
    return isinstance(value, int) or (isinstance(value, np.ndarray) and value.dtype == object)


def exact(numbers: NDArray[Any]) -> NDArray[Any]:
    """Integers as conditions calculate with them: Python's own, which have no limits.

    Examples:
        >>> exact(np.array([2**64 - 1], np.uint64)) + 1
        array([18446744073709551616], dtype=object)
    """
    if numbers.dtype.kind == "b":
        numbers = numbers.astype(np.int64)
    return numbers.astype(object) if numbers.dtype.kind in "iu" else numbers


def sample_labels(name: str, label: int | None, label_by: LabelBy) -> dict[str, int | None]:
    """What the events of a sample are called, with their class: `label_by` makes a sample of each class.

    Those without a class, None, keep the name.

    Examples:
        >>> sample_labels("top", None, {"flavour == 5": 1, "flavour == 4": 0, "flavour < 4": None})
        {'top.0': 0, 'top.1': 1, 'top': None}
    """
    if not label_by:
        return {name: label}
    classes = sorted({each for each in label_by.values() if each is not None})
    return {f"{name}.{each}": each for each in classes} | (
        {name: None} if None in label_by.values() else {}
    )
