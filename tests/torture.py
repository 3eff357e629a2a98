"""Kill every stage many times, and spoil thousands of inputs; an hour or so (`make torture`).

Each stage is killed at a random moment, with everything that it started, and then run again: its result must be that of
a run that nobody disturbed, and nothing may be left over. Spoiled ROOT files and configs must be read or refused with a
clean error, without a hang, a crash or an explosion of memory. Each case prints its seed, which gives it again:

    make torture TORTURE='--stages train --kills 1 --seed 17'
    make torture TORTURE='--kills 0 --fuzz 1 --seed 1234'
"""

from __future__ import annotations

import argparse
import collections
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fuzzing import Outcome, fuzz, summary
from undisturbed_run import STAGES, Kill, Undisturbed

#: Seeds of spoiled inputs that go to one child process.
SEEDS_PER_CHILD = 100


def kill_often(undisturbed: Undisturbed, stage: str, seeds: Sequence[int]) -> int:
    """Kill a stage once for each seed, run it again each time and compare; returns how many ended otherwise."""
    failures = 0
    kills: list[Kill] = []
    for seed in seeds:
        undisturbed.restore(stage)
        kill = undisturbed.kill(stage, seed)
        kills.append(kill)
        done = undisturbed.run(stage)
        try:
            assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
            undisturbed.check(stage)
            verdict = "as undisturbed"
        except AssertionError as error:
            failures += 1
            verdict = f"FAILED: {error}"
        when = "killed" if kill.in_time else "had ended"
        say(f"{stage:<10} seed {seed:<6} {when} after {kill.moment:5.1f} of {kill.duration:4.1f} s: {verdict}")
    say(f"{stage:<10} {sum(kill.in_time for kill in kills)} of {len(kills)} kills came in time, {failures} failed")
    return failures


def spoil_often(kind: str, seeds: range, folder: Path) -> int:
    """Try spoiled inputs; returns how many ended otherwise than by being read or refused."""
    outcomes: list[Outcome] = []
    for first in range(seeds.start, seeds.stop, SEEDS_PER_CHILD):
        found = fuzz(kind, first, min(SEEDS_PER_CHILD, seeds.stop - first), folder / f"{kind}-{first}")
        outcomes += found
        for each in found:
            if each.verdict == "failed":
                say(f"{kind:<10} seed {each.seed:<6} FAILED: {each.words}")
        say(f"{kind:<10} seeds {first} to {found[-1].seed}: {_words(summary(found))}")
    slowest = max(outcomes, key=lambda each: each.seconds)
    half = statistics.median(each.seconds for each in outcomes)
    say(f"{kind:<10} {len(outcomes)} inputs: {_words(summary(outcomes))}; median {half * 1e3:.0f} ms, longest "
        f"{slowest.seconds:.1f} s (seed {slowest.seed})")  # fmt: skip
    causes = collections.Counter(each.words.split(":")[0] for each in outcomes if each.verdict == "refused")
    say(f"{kind:<10} refused as {', '.join(f'{name} ({count})' for name, count in causes.most_common())}")
    return summary(outcomes)["failed"]


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def say(line: str) -> None:
    """Print at once: a run of an hour is watched."""
    print(line, flush=True)  # noqa: T201


def main() -> int:
    """The exit code: 0 if nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="for each stage")
    parser.add_argument("--fuzz", type=int, default=2000, help="spoiled inputs of each kind")
    parser.add_argument("--seed", type=int, help="the first; by default another one each time")
    parser.add_argument("--stages", nargs="*", choices=STAGES, default=STAGES)
    arguments = parser.parse_args()
    seed = int(time.time()) % 1_000_000 if arguments.seed is None else arguments.seed
    say(f"seeds from {seed} on")
    failures = 0
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        if arguments.kills:
            undisturbed = Undisturbed(Path(folder) / "here", Path(folder) / "finished")
            for stage in arguments.stages:
                failures += kill_often(undisturbed, stage, range(seed, seed + arguments.kills))
        if arguments.fuzz:
            for kind in ("root", "config"):
                failures += spoil_often(kind, range(seed, seed + arguments.fuzz), Path(folder))
    say(f"{failures} cases failed" if failures else "nothing failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
