"""Put small errors into a copy of the code, one at a time, and see which of them the tests notice (`make mutants`).

For changes of the tests: pick errors before, and afterwards try the same ones again. They are known by the expression
and the function that they are in, so both may have moved to other files:

    make mutants MUTANTS='--count 70 --seed 1 --out /tmp/before.json'
    make mutants MUTANTS='--again /tmp/before.json --tree ../other-checkout'

The tests nearest to the file with the error come first; if they do not end, they have noticed it. Then come others of
its folder and those that import it. Tests that start MPI or the command line are left out, and so are those that fail
without any error. An error that nothing notices may be none: read the line.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

#: What is checked: by root package, names of modules or folders anywhere in it, so that files may be moved.
PARTS: Mapping[str, Sequence[str]] = {
    "features": ("kernels", "mixing", "splitting", "scaling"),
    "ingestion": ("thresholds", "changes", "files", "baskets"),
    "models": ("evaluation", "prediction", "parity"),
    "training": ("algorithms", "sharding", "schedule", "checkpoints", "simulation", "topology", "skew", "gridsearch"),
    "pipeline": ("store", "fingerprint", "config", "clean", "stored_files", "cutflow", "runner"),
}
#: Modules that draw: a line a little thicker is no error.
DRAWING = frozenset({"figures", "comparison_figures", "style", "__main__"})
#: Constants below are there to keep a division from failing.
LEAST_CONSTANT = 1e-9
NOTICED = ("caught", "hung", "not compiled")
#: Exit codes of pytest that say that nothing failed: all passed, or there were no tests.
PASSED = (0, 5)
QUICK = "not end_to_end and not distributed and not airflow and not minutes and not goals"
OPTIONS = ("-q", "--no-showlocals", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=1", "-m", QUICK)

COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip
EXTREMES = {"min": "max", "minimum": "maximum", "argmin": "argmax"}
EXTREMES |= {new: old for old, new in EXTREMES.items()}


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
        for name in names:
            sources = {
                file.relative_to(tree).as_posix(): file.read_bytes()
                for file in sorted((tree / package).rglob("*.py"))
                if file.stem not in DRAWING and name in file.relative_to(tree / package).with_suffix("").parts
            }
            found[f"{package}/{name}"] = mutants_of(f"{package}/{name}", sources)
    return found


def mutants_of(part: str, sources: Mapping[str, bytes]) -> list[Mutant]:
    """All errors that could be put into some files."""
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
    """The tests that should notice an error in a file: those of its name, and those beside them or that import it."""
    path = Path(file)
    module, package = ".".join(path.with_suffix("").parts), ".".join(path.parent.parts)
    imported = re.compile(
        rf"^\s*(from {re.escape(module)} import|import {re.escape(module)}\b"
        rf"|from {re.escape(package)} import [^\n]*\b{path.stem}\b)", re.MULTILINE,
    )  # fmt: skip
    near, others = [file], []
    for test in sorted((tree / "tests").rglob("test_*.py")):
        name = test.relative_to(tree)
        is_of_package = name.parts[1] == path.parts[0]
        if f"{test.stem}_".startswith(f"test_{path.stem}_") and is_of_package:
            near.append(name.as_posix())
        elif imported.search(test.read_text()) or name.parent == "tests" / path.parent:
            others.append((not is_of_package, name.as_posix()))
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
    """Changes of a statement and of what it consists of; types, messages of errors and f-strings are left alone."""
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
    return value + 1 if isinstance(value, int) else value * 0.8 if value else 1.0


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


class Copy:
    """A copy of a checkout, to put errors into."""

    def __init__(self, tree: Path, folder: Path, seconds: float) -> None:
        self.tree, self._scratch, self._seconds = folder / "tree", folder / "tmp", seconds
        #: Tests that fail without any error, and files of tests that were run without.
        self._broken: set[str] = set()
        self._tried: set[str] = set()
        listed = ["git", "-C", str(tree), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0"):
            if (tree / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree / name, self.tree / name)

    def test(self, tests: Sequence[str], limit: float | None, *options: str) -> tuple[int | None, list[str]]:
        """Run tests of the copy; the exit code (None: out of time) and the names of those that failed."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        environment = os.environ | {
            "TMPDIR": str(self._scratch),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": "",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._scratch / "hypothesis"),
        }
        left_out = [f"--deselect={test}" for test in sorted(self._broken)]
        command = [sys.executable, "-m", "pytest", *OPTIONS, *options, *left_out, *tests]
        with (self._scratch / "output").open("w+") as output:
            process = subprocess.Popen(
                command, cwd=self.tree, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            ended_in_time = waited_for(process, limit)
            output.seek(0)
            failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output.read(), re.MULTILINE)
            return process.returncode if ended_in_time else None, failed

    def check(self, tests: Sequence[str]) -> None:
        """Run tests without any error; those that fail are left out from now on."""
        code, failed = self.test(tests, None)
        if code not in PASSED and not failed:
            sys.exit(f"the tests cannot be run without any error (exit code {code})")
        self._broken.update(failed)
        self._tried.update(tests)

    def attempt(self, mutant: Mutant) -> tuple[str, str | None]:
        """What the tests make of an error, and the test that notices it."""
        file = self.tree / mutant.file
        before = file.read_bytes()
        text = mutant.applied(before)
        try:
            compile(text, mutant.file, "exec")
        except SyntaxError:
            return "not compiled", None
        near, others = nearest_tests(mutant.file, self.tree)
        for tests, out_of_time in ((near, "hung"), (others, "out of time")):
            while tests:
                file.write_bytes(text)
                try:
                    code, failed = self.test(tests, self._seconds, "-x")
                finally:
                    file.write_bytes(before)
                if code is None:
                    return out_of_time, None
                if code in PASSED:
                    break
                by = failed[0] if failed else None
                suspect = [by.partition("::")[0]] if by else list(tests)
                if self._tried.issuperset(suspect):
                    return "caught", by
                self.check(suspect)
        return "survived", None


def waited_for(process: subprocess.Popen[bytes], limit: float | None) -> bool:
    """Whether a process ended before it and its children used some processor time (or five times that by the clock).

    One that did not is killed with all that it started.
    """
    began = time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
            return True
        with suppress(psutil.NoSuchProcess):
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            used = sum(sum(each.cpu_times()[:4]) for each in family)
            if limit is not None and (used > limit or time.monotonic() - began > 5 * limit):
                for each in family:
                    with suppress(psutil.NoSuchProcess):
                        each.send_signal(signal.SIGKILL)
                process.wait()
                return False


def line(result: Mapping[str, Any]) -> str:
    """A row of the table."""
    old, new = (" ".join(result[name].split())[:60] for name in ("old", "new"))
    return (
        f"{result['outcome']:<12} {result['seconds']:>5.0f} s  {result['key']}  {result['file']}:{result['line']} "
        f"{result['function']}: {result['kind']}: {old} -> {new}"
    )


def say(text: str) -> None:
    """Print at once: a run of an hour is watched."""
    print(text, flush=True)  # noqa: T201


def lost(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The errors that were noticed before and are noticed no longer."""
    outcomes = {each["key"]: each["outcome"] for each in now}
    return [
        each for each in before if each["outcome"] in NOTICED and outcomes.get(each["key"], "caught") not in NOTICED
    ]


def main() -> int:
    """The exit code: 1 if an error that was noticed before is noticed no longer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=70, help="how many errors, evenly over the parts of the code")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60, help="begin no further error after that")
    parser.add_argument("--timeout", type=float, default=100, help="seconds of a processor, twice")
    parser.add_argument("--again", type=Path, help="results of an earlier run: try the same errors, and compare")
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1], help="another checkout")
    parser.add_argument("--out", type=Path, default=Path("build/mutants.json"), help="where results go")
    arguments = parser.parse_args()
    found = all_mutants(arguments.tree)
    before = json.loads(arguments.again.read_text()) if arguments.again else []
    by_key = {mutant.key: mutant for each in found.values() for mutant in each}
    mutants = [by_key[each["key"]] for each in before if each["key"] in by_key]
    mutants = mutants if arguments.again else pick(found, arguments.count, arguments.seed)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tested = Copy(arguments.tree, Path(folder), arguments.timeout)
        began = time.monotonic()
        for mutant in mutants:
            start = time.monotonic()
            if start - began > arguments.minutes * 60:
                break
            outcome, by = tested.attempt(mutant)
            seconds = round(time.monotonic() - start, 1)
            results.append({"key": mutant.key, "outcome": outcome, "by": by, "seconds": seconds, **asdict(mutant)})
            say(line(results[-1]))
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    counts = Counter(each["outcome"] for each in results)
    say(f"of {len(before or mutants)}: {', '.join(f'{number} {name}' for name, number in counts.most_common())}")
    no_longer = lost(before, results)
    for each in no_longer:
        say(f"noticed no longer: {line(each)}; was noticed by {each['by']}")
    return 1 if no_longer else 0


if __name__ == "__main__":
    sys.exit(main())
