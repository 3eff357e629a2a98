"""Put small errors into a copy of the code, one at a time, and see which of them the tests notice (`make mutants`).

For changes of the tests: pick errors before, and afterwards try the same ones again. They are known by the expression
and the function that they are in, so both may have moved to other files. What was noticed before must be noticed again:

    make mutants MUTANTS='--count 70 --seed 1 --out /tmp/before.json'
    make mutants MUTANTS='--again /tmp/before.json --tree ../other-checkout'

The tests nearest to the file with the error come first; if they do not end, they have noticed it. Then come others of
its folder and those that import it, as many as can be run in a while. Tests that start MPI or the command line are left
out, and so are those that fail without any error. An error that nothing notices may be none: read the line.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from mutating import PARTS, Mutant, all_mutants, nearest_tests, pick

NOTICED = ("caught", "hung", "not compiled")
#: Exit codes of pytest that say that nothing failed: all passed, or there were no tests.
PASSED = (0, 5)
QUICK = "not end_to_end and not distributed and not airflow"
OPTIONS = ("-q", "--no-showlocals", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=1", "-m", QUICK)


class Ended(NamedTuple):
    """How a run of tests ended."""

    code: int | None
    """None: it was killed for taking too long."""
    failed: list[str]


class Copy:
    """A copy of a checkout, to put errors into."""

    def __init__(self, tree: Path, folder: Path, seconds: float) -> None:
        self.tree = folder / "tree"
        self._scratch = folder / "tmp"
        self._seconds = seconds
        #: Tests that fail without any error, and those that were seen to pass.
        self._broken: set[str] = set()
        self._sound: set[str] = set()
        listed = ["git", "-C", str(tree), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0"):
            if (tree / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree / name, self.tree / name)

    def test(self, tests: Sequence[str], limit: float | None, *options: str) -> Ended:
        """Run tests of the copy, with all temporary files in a folder of their own and no bytecode of other errors."""
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
            try:
                ended_in_time = _waited_for(process, limit)
            finally:
                _kill_group(process)
            output.seek(0)
            code = process.returncode if ended_in_time else None
            return Ended(code, re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output.read(), re.MULTILINE))

    def check(self, tests: Sequence[str]) -> list[str]:
        """Run tests without any error; those that fail are left out from now on."""
        ended = self.test(tests, None)
        if ended.code not in PASSED and not ended.failed:
            sys.exit(f"the tests cannot be run without any error (exit code {ended.code})")
        self._broken.update(ended.failed)
        self._sound.update(tests)
        return ended.failed

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
                    ended = self.test(tests, self._seconds, "-x")
                finally:
                    file.write_bytes(before)
                if ended.code is None:
                    return out_of_time, None
                if ended.code in PASSED:
                    break
                by = ended.failed[0] if ended.failed else None
                if not self._fails_anyway(by, tests):
                    return "caught", by
        return "survived", None

    def _fails_anyway(self, test: str | None, tests: Sequence[str]) -> bool:
        """Whether a test fails without any error too; if none is named, the tests must be able to run at all."""
        if test is None:
            return bool(self.check(tests))
        if "::" not in test or not self._sound.isdisjoint({test, test.split("::")[0]}):
            return False
        return bool(self.check([test]))


def _waited_for(process: subprocess.Popen[bytes], limit: float | None) -> bool:
    """Whether a process ended before it and its children had used a number of seconds of processor time.

    Seconds by the clock may be few on a busy machine; five times as many end one that waits for nothing.
    """
    began = time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
            return True
        if limit is not None and (_used(process.pid) > limit or time.monotonic() - began > 5 * limit):
            return False


def _used(pid: int) -> float:
    used = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            used += sum(each.cpu_times()[:4])
    return used


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # A process that leads no group is not killed with one.
    process.kill()
    process.wait()


def attempts(copy: Copy, mutants: Sequence[Mutant], minutes: float) -> Iterator[dict[str, Any]]:
    """Try errors one after the other, as long as there is time."""
    began = time.monotonic()
    near = sorted({file for mutant in mutants for file in nearest_tests(mutant.file, copy.tree)[0]})
    for broken in copy.check(near):
        say(f"fails without any error: {broken}")
    say(f"{len(mutants)} errors; {len(near)} files of tests took {time.monotonic() - began:.0f} s without any")
    for mutant in mutants:
        start = time.monotonic()
        if start - began > minutes * 60:
            say(f"no more after {minutes} minutes")
            return
        outcome, by = copy.attempt(mutant)
        seconds = round(time.monotonic() - start, 1)
        result = {"key": mutant.key, "outcome": outcome, "by": by, "seconds": seconds, **asdict(mutant)}
        say(line(result))
        yield result


def line(result: dict[str, Any]) -> str:
    """A row of the table."""
    old, new = (" ".join(result[name].split()) for name in ("old", "new"))
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(f"({old}", new, strict=False)))
    first = max(same - 30, 1)
    change = f"{old[first - 1 :][:60]} -> {new[first if same else 0 :][:60].removesuffix(')')}"
    place = f"{result['file']}:{result['line']}"
    return (
        f"{result['outcome']:<12} {result['seconds']:>5.0f} s  {result['key']}  {place:<44} "
        f"{result['function']}: {result['kind']}: {change}"
    )


def compare(before: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]], gone: Sequence[str]) -> int:
    """Say what changed since; returns how many errors are noticed no longer."""
    outcomes = {each["key"]: each["outcome"] for each in now}
    tried = [each for each in before if each["key"] in outcomes]
    lost = [each for each in tried if each["outcome"] in NOTICED and outcomes[each["key"]] not in NOTICED]
    won = [each for each in tried if each["outcome"] not in NOTICED and outcomes[each["key"]] in NOTICED]
    for title, each in [("noticed no longer", lost), ("noticed now", won)]:
        say(f"{len(each)} {title}{':' if each else ''}")
        for result in each:
            say(f"  {line(result)}; was noticed by {result['by']}" if each is lost else f"  {line(result)}")
    say(f"{len(before) - len(tried)} of {len(before)} not tried, {len(gone)} no longer in the code: {' '.join(gone)}")
    return len(lost)


def say(text: str) -> None:
    """Print at once: a run of an hour is watched."""
    print(text, flush=True)  # noqa: T201


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=70, help="how many errors, evenly over the parts of the code")
    parser.add_argument("--parts", nargs="+", default=[], help="e.g. training/readers: only errors of these parts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60, help="begin no further error after that")
    parser.add_argument("--timeout", type=float, default=100, help="seconds of a processor, twice")
    parser.add_argument("--again", type=Path, help="results of an earlier run: try the same errors, and compare")
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1], help="another checkout")
    parser.add_argument("--out", type=Path, default=Path("build/mutants.json"), help="where results go")
    return parser.parse_args()


def main() -> int:
    """The exit code: 1 if an error that was noticed before is noticed no longer."""
    arguments = _parsed()
    parts = {
        package: [name.partition("/")[2] for name in names]
        for package, names in itertools.groupby(sorted(arguments.parts), lambda name: name.partition("/")[0])
    }
    found = all_mutants(arguments.tree, parts or PARTS)
    before = json.loads(arguments.again.read_text()) if arguments.again else []
    by_key = {mutant.key: mutant for each in found.values() for mutant in each}
    gone = [each["key"] for each in before if each["key"] not in by_key]
    mutants = [by_key[each["key"]] for each in before if each["key"] in by_key]
    if not arguments.again:
        mutants = pick(found, arguments.count, arguments.seed)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(arguments.tree, Path(folder), arguments.timeout)
        for result in attempts(copy, mutants, arguments.minutes):
            results.append(result)
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    counts = Counter(each["outcome"] for each in results)
    say(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()) + f"; see {arguments.out}")
    return 1 if arguments.again and compare(before, results, gone) else 0


if __name__ == "__main__":
    sys.exit(main())
