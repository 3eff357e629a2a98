"""Sources of weights, labels and pass-through columns: branches, numbers of lists, conditions."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Container, Mapping
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

#: Prefix of the names of columns that conditions compare.
LABEL_PREFIX: Final = "_label_by_"
#: Prefix of the keys of pass-through columns, which may have the names of fields of the events.
COLUMN_PREFIX: Final = "_column_"
#: Functions of numbers or arrays for Python's operators; `and`, `or` and `not` work bit by bit on
#: arrays of booleans.
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


def _is_in(numbers: Any, choices: list[Any]) -> Any:
    """Whether each number equals one of the choices."""
    return functools.reduce(operator.or_, [numbers == choice for choice in choices])


_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: _is_in,
    ast.NotIn: lambda numbers, choices: ~_is_in(numbers, choices),
}
#: Functions of numpy that conditions may call.
_FUNCTIONS: Final = (
    "abs",
    "sqrt",
    "exp",
    "expm1",
    "log",
    "log10",
    "log1p",
    "floor",
    "ceil",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "arcsin",
    "arccos",
    "arctan",
    "arctan2",
    "arcsinh",
    "arccosh",
    "arctanh",
)
#: The class of events by their condition; None for events to leave out.
LabelBy = Mapping[str, int | None]


class ColumnSource(NamedTuple):
    """The branch of a weight, a label or a pass-through column."""

    branch: str
    position: int | None = None
    """Position in a list per event, from 0; None if the branch has one number per event."""
    is_factor: bool = False
    """Whether the numbers are factors of the sample's weight."""

    @property
    def text(self) -> str:
        """The branch, and the position in a list, as the config names them."""
        return self.branch if self.position is None else f"{self.branch}[{self.position}]"

    @classmethod
    def of_weight(cls, text: str) -> Self:
        """The source that a value of `ingest.weights`, or of `weight` of a sample, names.

        The value is a branch, with `[N]` after it for position N of its lists, and `weight *`
        before it for a factor of the sample's weight.

        Examples:
            >>> ColumnSource.of_weight("WeightLHEF.Weight[7]")
            ColumnSource(branch='WeightLHEF.Weight', position=7, is_factor=False)
            >>> ColumnSource.of_weight("weight*LHEScaleWeight[0]")
            ColumnSource(branch='LHEScaleWeight', position=0, is_factor=True)
        """
        name = re.sub(r"^weight *\* *", "", text)
        is_factor = name != text
        in_list = re.fullmatch(r"(.*)\[(\d+)\]", name)
        if in_list:
            return cls(in_list[1], int(in_list[2]), is_factor)
        return cls(name, is_factor=is_factor)

    def in_file(self, names: Container[str]) -> Self:
        """The source in a file with branches of these names.

        A branch whose own name ends in `[N]` comes before a position of a list.

        Examples:
            >>> ColumnSource("w", 0).in_file(["w", "w[0]"])
            ColumnSource(branch='w[0]', position=None, is_factor=False)
        """
        is_branch = self.position is not None and self.text in names
        return self._replace(branch=self.text, position=None) if is_branch else self


class LabelRule(NamedTuple):
    """The classes of events by conditions on branches.

    Each branch, or number of a list, is a column with a name that Python can read; the conditions
    are written with these names.
    """

    sources: dict[str, ColumnSource]
    """The branches that the conditions compare, by the name of their column."""
    conditions: dict[str, int | None]
    """Conditions on these columns, each with its class."""

    @classmethod
    def of(cls, label_by: LabelBy) -> Self:
        """The rule of a sample, from its `label_by`: conditions on branches, with their classes.

        Raises:
            ValueError: A text is no condition, or cannot be read.

        Examples:
            >>> LabelRule.of({"abs(Top.flavour[0]) == 5": 1}).conditions
            {'abs(_label_by_0) == 5': 1}
        """
        columns: dict[str, str] = {}
        conditions = {_parse_condition(text, columns): label for text, label in label_by.items()}
        sources = {column: ColumnSource.of_weight(text) for text, column in columns.items()}
        return cls(sources, conditions)

    def labels(
        self, columns: Mapping[str, NDArray[np.generic]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The class of each event, and the number of conditions that hold; both (num_events,).

        `columns` are the numbers (num_events,) of `sources`. A class of None is -1. The class has a
        meaning only where exactly one condition holds; for an event with a number that is not
        finite, none does.
        """
        num_events = len(next(iter(columns.values())))
        is_finite = np.ones(num_events, np.bool_)
        for numbers in columns.values():
            if numbers.dtype.kind == "f":
                is_finite &= np.isfinite(numbers)
        # (num_conditions, num_events)
        holds = np.stack([_evaluate(condition, columns) for condition in self.conditions])
        holds &= is_finite
        labels = [-1 if label is None else label for label in self.conditions.values()]
        # `argmax` of booleans is the first condition that holds, or 0 if none does.
        first_condition = holds.argmax(axis=0)
        labels_of_events = np.array(labels)[first_condition]
        num_conditions = holds.sum(axis=0)
        return labels_of_events, num_conditions


def _parse_condition(text: str, columns: dict[str, str]) -> str:
    """Check a condition, and write it with columns in place of branches.

    The result is text for `_evaluate`. It adds a column for each new branch to `columns`, which has
    the name of the column by branch.

    Raises:
        ValueError: The text has no value true or false for each event.
    """
    reason = "it is neither true nor false for each event"
    try:
        # As in pandas, & and | have the low precedence of `and` and `or`.
        python_text = text.strip().replace("&", " and ").replace("|", " or ")
        tree = ast.parse(python_text, mode="eval")
        condition = ast.unparse(_BranchesToColumns(columns).visit(tree))
        # The check calculates with no events, since a calculation may fail only for some numbers.
        no_events = {column: np.empty(0, np.int64) for column in columns.values()}
        result = _evaluate(condition, no_events)
        is_condition = result.shape == (0,) and result.dtype == np.bool_
    # The errors of Python and numpy about a text have no common class.
    except Exception as cause:  # noqa: BLE001
        is_condition, reason = False, str(cause)
    if not is_condition:
        raise ValueError(
            f"label_by: '{text}' is no condition on branches ({reason}). Write one such as "
            f"`abs(flavour) == 5`, `flavours[0] in [4, 5]` or `num_b > 1 and not is_tau == 1`"
        )
    return condition


class _BranchesToColumns(ast.NodeTransformer):
    """Replaces branches, and numbers of lists, by columns in a parsed condition.

    Each name, attribute (`Top.flavour`) or subscript (`flavours[0]`) is one branch as a whole. Its
    text and the name of its column are added to the `columns` of the caller.
    """

    def __init__(self, columns: dict[str, str]) -> None:
        self._columns = columns

    def _column(self, node: ast.expr) -> ast.expr:
        """The column of a branch: a new one, `_label_by_<number>`, for a new branch."""
        new_name = f"{LABEL_PREFIX}{len(self._columns)}"
        return ast.Name(self._columns.setdefault(ast.unparse(node), new_name))

    visit_Name = visit_Attribute = visit_Subscript = _column  # noqa: N815 - names of ast

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Keep the name of a function; refuse methods, which could write files."""
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise TypeError(f"{ast.unparse(node)} is no function of numbers")
        node.args = [self.visit(argument) for argument in node.args]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Refuse arithmetic on comparisons: true and true would add up to true."""
        for operand in (node.left, node.right):
            if isinstance(operand, ast.Compare | ast.BoolOp):
                raise TypeError("a comparison is no number to calculate with")
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """Refuse text, which would never equal a number."""
        if not isinstance(node.value, int | float):
            raise TypeError(f"{node.value!r} is no number")
        return node


def _evaluate(condition: str, columns: Mapping[str, NDArray[np.generic]]) -> NDArray[np.bool_]:
    """(num_events,) whether a condition on columns holds for each event."""
    calculator = _Calculator({name: exact(numbers) for name, numbers in columns.items()})
    # Infinity and NaN are valid results, so numpy gives no warning.
    with np.errstate(all="ignore"):
        return np.asarray(calculator.visit(ast.parse(condition, mode="eval").body))


class _Calculator(ast.NodeVisitor):
    """Calculates an expression of columns, (num_events,) arrays, event by event.

    Each method returns the value of one kind of node of the parsed expression: an array, or a plain
    number.

    Integers are Python's own, so they are exact at any size; all real numbers are float64. Which of
    them a result is depends on the expression and the types of the branches alone, never on the
    numbers.
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
        """The result of arithmetic.

        It is exact for two integers; but quotients, and powers with a negative or variable
        exponent, are reals (float64).
        """
        first = self.visit(node.left)
        second = self.visit(node.right)
        is_exact = _is_integer(first) and _is_integer(second)
        if isinstance(node.op, ast.Div):
            is_exact = False
        elif isinstance(node.op, ast.Pow):
            is_power_of_constant = isinstance(second, int) and second >= 0
            is_exact = is_exact and is_power_of_constant
        if not is_exact:
            first = np.asarray(first, np.float64)
            second = np.asarray(second, np.float64)
        operate = _BINARY[type(node.op)]
        return operate(first, second)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """`and` and `or`."""
        operands = [self.visit(operand) for operand in node.values]
        return functools.reduce(_BINARY[type(node.op)], operands)

    def visit_Compare(self, node: ast.Compare) -> Any:
        """A chain of comparisons, such as `0 < x < 5`: all of its pairs must hold."""
        first = self.visit(node.left)
        results = []
        for comparison, comparator in zip(node.ops, node.comparators, strict=True):
            second = self.visit(comparator)
            compare = _COMPARISONS[type(comparison)]
            results.append(compare(first, second))
            first = second
        return functools.reduce(operator.and_, results)

    def visit_Call(self, node: ast.Call) -> Any:
        """The value of a function of `_FUNCTIONS`; all but `abs` calculate with float64."""
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
    """Whether an operand is an integer, or an array of Python's integers (dtype object)."""
    return isinstance(value, int) or (isinstance(value, np.ndarray) and value.dtype == object)


def exact(numbers: NDArray[Any]) -> NDArray[Any]:
    """Convert numbers to a type in which all nodes of an expression calculate.

    Integers and booleans become Python's integers, which have no limits, in an array of dtype
    object. Reals become float64.

    Examples:
        >>> exact(np.array([2**64 - 1], np.uint64)) + 1
        array([18446744073709551616], dtype=object)
    """
    if numbers.dtype.kind == "b":
        numbers = numbers.astype(np.int64)
    if numbers.dtype.kind in "iu":
        return numbers.astype(object)
    return numbers.astype(np.float64, copy=False)


def sample_labels(name: str, label: int | None, label_by: LabelBy) -> dict[str, int | None]:
    """The names that the events of a sample get as their sample, each with the class.

    `label_by` makes a sample of each class; events without a class, None, keep the name.

    Examples:
        >>> sample_labels("top", None, {"flavour == 5": 1, "flavour == 4": 0, "flavour < 4": None})
        {'top.0': 0, 'top.1': 1, 'top': None}
    """
    if not label_by:
        return {name: label}
    classes = {label for label in label_by.values() if label is not None}
    labels: dict[str, int | None] = {}
    for class_label in sorted(classes):
        labels[f"{name}.{class_label}"] = class_label
    leaves_out_events = None in label_by.values()
    if leaves_out_events:
        labels[name] = None
    return labels
