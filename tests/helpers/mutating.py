"""Small errors to put into the code, one at a time: which there are, which are picked, which tests should notice."""

from __future__ import annotations

import ast
import copy
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: What is checked: by root package, names of modules or folders anywhere in it, so that files may be moved.
PARTS: Mapping[str, Sequence[str]] = {
    "features": ("kernels", "mixing", "splitting", "scaling"),
    "ingestion": ("thresholds", "changes", "files", "baskets"),
    "models": ("evaluation", "prediction", "parity"),
    "training": (
        "algorithms", "sharding", "schedule", "checkpoints", "virtual_time", "simulation/transport",
        "simulation/shared_vector", "simulation/collectives", "simulation/lost_messages", "topology", "skew",
        "flat_model", "gridsearch",
    ),
    "pipeline": ("store", "fingerprint", "config", "clean", "space", "cutflow", "runner"),
}  # fmt: skip
#: Modules of those folders that draw: a line a little thicker is no error.
DRAWING = frozenset({"figures", "comparison_figures", "style"})

#: Tests that search for the text of lines, which every error changes.
LEFT_OUT = frozenset({"test_mutations.py"})

COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip
EXTREMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmin": "argmax",
    "argmax": "argmin",
}
#: Smaller constants only keep a division from failing.
LEAST_CONSTANT = 1e-9


@dataclass(frozen=True)
class Mutant:
    """One error in one function; known by all but its place, so that it is found again where code was moved."""

    part: str
    function: str
    kind: str
    old: str
    occurrence: int
    new: str
    file: str
    line: int
    start: int
    """First byte in the file of what is replaced."""
    end: int

    @property
    def key(self) -> str:
        """The same on every tree that has this expression in this function."""
        return _digest(self.part, self.function, self.kind, self.old, str(self.occurrence))[:12]

    def applied(self, source: bytes) -> bytes:
        """The text of the file with the error in it."""
        return source[: self.start] + self.new.encode() + source[self.end :]


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def all_mutants(tree: Path, parts: Mapping[str, Sequence[str]] = PARTS) -> dict[str, list[Mutant]]:
    """By part of the code, e.g. `training/topology`, all errors that could be put into it."""
    found: dict[str, list[Mutant]] = {}
    for package, names in parts.items():
        files = [file for file in sorted((tree / package).rglob("*.py")) if file.stem not in {*DRAWING, "__main__"}]
        for name in names:
            wanted = set(name.split("/"))
            part = f"{package}/{name}"
            sources = {
                file.relative_to(tree).as_posix(): file.read_bytes()
                for file in files
                if wanted <= set(file.relative_to(tree / package).with_suffix("").parts)
            }
            found[part] = mutants_of(part, sources)
    return found


def mutants_of(part: str, sources: Mapping[str, bytes]) -> list[Mutant]:
    """All errors that could be put into some files.

    Examples:
        >>> [found] = mutants_of("toy", {"toy.py": b"def least(a, b):\\n    print(min(a, b))\\n"})[1:]
        >>> found.function, found.kind, found.old, found.new
        ('least', 'extreme', 'min(a, b)', '(max(a, b))')
    """
    seen: Counter[tuple[str, str, str]] = Counter()
    mutants = []
    for file, source in sources.items():
        starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
        for function, kind, node, new in _in_scope(ast.parse(source), ""):
            old = ast.unparse(node)
            seen[function, kind, old] += 1
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            mutants.append(
                Mutant(part, function, kind, old, seen[function, kind, old], new, file, node.lineno, start, end)
            )
    return mutants


def pick(mutants: Mapping[str, Sequence[Mutant]], count: int, seed: int) -> list[Mutant]:
    """A number of errors, spread evenly over the parts; a larger number begins with those of a smaller one."""
    shuffled = [sorted(each, key=lambda one: _digest(str(seed), one.key)) for each in mutants.values()]
    rounds = itertools.chain.from_iterable(itertools.zip_longest(*shuffled))
    return list(itertools.islice((each for each in rounds if each is not None), count))


def nearest_tests(file: str, tree: Path) -> tuple[list[str], list[str]]:
    """The tests that should notice an error in a file, relative to the tree: the nearest, and others.

    Nearest are its doctests and tests of that name. Others, in this order: tests of its package that import it, those
    in the folder that mirrors its own, and those elsewhere that import it.
    """
    path = Path(file)
    module, package = ".".join(path.with_suffix("").parts), ".".join(path.parent.parts)
    imported = re.compile(
        rf"^\s*(from {re.escape(module)} import|import {re.escape(module)}\b"
        rf"|from {re.escape(package)} import [^\n]*\b{path.stem}\b)", re.MULTILINE,
    )  # fmt: skip
    near = [file]
    others: list[tuple[int, str]] = []
    for test in sorted((tree / "tests").rglob("test_*.py")):
        name = test.relative_to(tree)
        imports, is_beside = imported.search(test.read_text()) is not None, name.parent == "tests" / path.parent
        if test.name in LEFT_OUT:
            continue
        if f"{test.stem}_".startswith(f"test_{path.stem}_") and name.parts[1] not in {*PARTS} - {path.parts[0]}:
            near.append(name.as_posix())
        elif imports and name.parts[1] == path.parts[0]:
            others.append((1, name.as_posix()))
        elif imports or is_beside:
            others.append((2 if is_beside else 4 if name.parts[1] == "integration" else 3, name.as_posix()))
    return near, [name for _, name in sorted(others)]


def _in_scope(node: ast.AST, scope: str) -> Iterator[tuple[str, str, ast.stmt | ast.expr, str]]:
    """Function, kind, what is replaced and by what, for all functions below a module, class or function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{scope}{child.name}"
            returned = ast.unparse(child.returns) if child.returns else ""
            for statement in child.body:
                for kind, replaced, new in _below(statement, "0" if returned in {"int", "float", "bool"} else "None"):
                    yield name, kind, replaced, new
            yield from _in_scope(child, f"{name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _in_scope(child, f"{scope}{child.name}.")
        elif isinstance(child, ast.stmt):
            yield from _in_scope(child, scope)


def _below(node: ast.AST, nothing: str) -> Iterator[tuple[str, ast.stmt | ast.expr, str]]:
    """Changes of a statement or expression and of what it consists of; functions in functions are for `_in_scope`.

    Types, messages of errors and what stands in f-strings are left alone.
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Raise | ast.JoinedStr):
        return
    yield from _changes(node, nothing)
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "msg"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _below(child, nothing)


def _changes(node: ast.AST, nothing: str) -> Iterator[tuple[str, ast.stmt | ast.expr, str]]:
    """Kind, what is replaced and by what, for one node alone."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            yield "comparison", node, _with(node, ops=[COMPARISONS[type(operator)]()])
        case ast.BoolOp(op=operator):
            yield "and/or", node, _with(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
        case ast.BinOp(op=operator) if type(operator) in ARITHMETIC and not (
            _is_text(node.left) or _is_text(node.right)
        ):
            yield "arithmetic", node, _with(node, op=ARITHMETIC[type(operator)]())
        case ast.AugAssign(op=operator):
            yield "deletion", node, "pass"
            if type(operator) in ARITHMETIC:
                yield "arithmetic", node, _with(node, op=ARITHMETIC[type(operator)]())
        case ast.Constant(value=bool() | int() | float() as value) if value == 0 or abs(value) >= LEAST_CONSTANT:
            yield "constant", node, _with(node, value=_other(value))
        case ast.If(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test, *_]):
            yield "condition", test, f"(not ({ast.unparse(test)}))"
        case ast.Call(func=ast.Name(id=name)) if name in EXTREMES:
            yield "extreme", node, _with(node, func=ast.Name(EXTREMES[name]))
        case ast.Call(func=ast.Attribute(attr=name) as method) if name in EXTREMES:
            yield "extreme", node, _with(node, func=ast.Attribute(method.value, EXTREMES[name]))
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return", node, f"return {nothing}"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "deletion", node, "pass"
        case _:
            pass


def _with(node: ast.stmt | ast.expr, **fields: object) -> str:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    text = ast.unparse(changed)
    return text if isinstance(node, ast.stmt) else f"({text})"


def _other(value: float) -> float:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return value * 0.8 if value else 1.0


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
