"""What the log of mpirun, srun or the driver of agents says of a lost rank: the cause before its consequences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

#: mpirun writes its messages between two such lines.
RULE: Final = "-" * 60
_RULE: Final = re.compile(r"^-{20,}\n", re.MULTILINE)
_LONGEST: Final = 400
#: A line such as `  Remote host:   host2`.
_DETAIL: Final = re.compile(r"\s*[A-Z][\w ()]*:\s+\S")
#: Lines that come with every start or end, and say nothing of its cause.
_NOISE: Final = re.compile(
    r"setpgid\(|sent help message|help_aggregate|Killed by signal|known hosts|already been reported|^\s*$"
)
#: What mpirun and srun say after a rank has ended the job, whatever its reason.
_CONSEQUENCE: Final = re.compile(
    r"MPI_ABORT|MPI_ERRORS_|terminated normally, but|non-zero (exit )?(status|code)|exiting improperly"
    r"|Exited with exit code|STEP .* CANCELLED|Job step aborted"
)
#: What tells a cause, the surest first.
_CAUSES: Final = (
    re.compile(
        r"the executor on .* is lost|not responding|No route to host|Network is unreachable|Connection timed out"
        r"|Could not resolve|Permission denied \(|Host key verification|command not found|Node failure"
        r"|oom[- _]?kill|out[- ]of[- ]memory",
        re.IGNORECASE,
    ),
    re.compile(
        r"exited on signal|srun: error: .*: (Killed|Terminated|Segmentation fault|Aborted|Bus error)"
    ),
    re.compile(
        r"^ssh: |srun: error|lost communication|Connection (to \S+ )?(closed|reset|refused)|daemon"
    ),
    re.compile(r"^[\w.]*(Error|Exception): "),
    re.compile(r"peer process"),
)


def parse_rank_loss(log: str) -> str:
    """What a log says of the cause of a loss, on one line; empty if it says nothing.

    Examples:
        >>> parse_rank_loss("srun: error: host2: task 1: Killed")
        'srun: error: host2: task 1: Killed'
    """
    statements = list(_statements(log))
    cause = min(statements, key=_doubt, default=_Statement("", is_block=False))
    words = cause.text
    if _doubt(cause) >= len(_CAUSES):
        # Nothing that is known: the first message of mpirun, else what came last.
        blocks = [statement.text for statement in statements if statement.is_block]
        lines = [statement.text for statement in statements if not statement.is_block]
        words = " ".join(blocks[:1] or lines[-3:])
    if len(words) <= _LONGEST:
        return words
    return words[:_LONGEST].rpartition(" ")[0] + " ..."


def without_noise(log: str) -> str:
    """The lines of a log that may say something of a cause."""
    return "\n".join(line for line in log.splitlines() if not _NOISE.search(line))


class _Statement(NamedTuple):
    """A message of mpirun between two rules, or any other line."""

    text: str
    is_block: bool


def _doubt(statement: _Statement) -> int:
    """How little a statement says of a cause; equal ones count in the order of the log."""
    if _CONSEQUENCE.search(statement.text):
        return len(_CAUSES) + 1
    for doubt, pattern in enumerate(_CAUSES):
        if pattern.search(statement.text):
            return doubt
    return len(_CAUSES)


def _statements(log: str) -> Iterator[_Statement]:
    for number, part in enumerate(_RULE.split(log)):
        is_block = number % 2 == 1
        lines = without_noise(part).splitlines()
        if is_block:
            lines = [_shortened(lines)]
        for line in lines:
            text = " ".join(line.split())
            if text:
                yield _Statement(text, is_block)


def _shortened(lines: list[str]) -> str:
    """A message of mpirun on one line; of a long one the first sentence, and what it says of hosts and processes."""
    text = " ".join(" ".join(lines).split())
    if len(text) <= _LONGEST:
        return text
    first_sentence = re.split(r"(?<=\.) ", text, maxsplit=1)[0]
    details = [line for line in lines if _DETAIL.match(line)]
    return " ".join([first_sentence, *details])
