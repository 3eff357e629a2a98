"""Finds the cause of a lost rank in the log of mpirun, srun or the driver of agents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

#: mpirun writes its messages between two such lines.
RULE: Final = "-" * 60
_RULE: Final = re.compile(r"^-{20,}\n", re.MULTILINE)
_MAX_CHARACTERS: Final = 400
#: A line such as `  Remote host:   host2`.
_DETAIL: Final = re.compile(r"\s*[A-Z][\w ()]*:\s+\S")
#: Lines of every start or end, which say nothing of a cause.
_NOISE: Final = re.compile(
    r"setpgid\(|sent help message|help_aggregate|Killed by signal|known hosts"
    r"|already been reported|^\s*$"
)
#: Messages of mpirun and srun after a rank has ended the job, for any reason.
_CONSEQUENCE: Final = re.compile(
    r"MPI_ABORT|MPI_ERRORS_|terminated normally, but|non-zero (exit )?(status|code)"
    r"|exiting improperly|STEP .* CANCELLED|Job step aborted|Terminating (StepId|job step)"
    r"|Force Terminated"
)
#: Messages after a signal has ended a rank.
_SIGNAL: Final = re.compile(
    r"exited on signal|srun: error: .*: (Killed|Terminated|Segmentation fault|Aborted|Bus error)"
)
#: Message of srun after a rank has ended with another status than 0.
_EXIT_CODE: Final = re.compile(r"srun: error: .*: Exited with exit code")
#: Messages of srun about the end of a rank, and about the signals by which SLURM itself ends ranks.
_END_OF_RANK: Final = re.compile(r"srun: error: \S+: tasks? \S+: ")
_SIGNAL_OF_SLURM: Final = re.compile(rf"{_END_OF_RANK.pattern}(Killed|Terminated)")
#: Messages that name a cause, the surest first.
_CAUSES: Final = (
    re.compile(
        r"the executor on .* is lost|not responding|No route to host|Network is unreachable"
        r"|Connection timed out|Could not resolve|Permission denied \(|Host key verification"
        r"|command not found|Node failure|oom[- _]?kill|out[- ]of[- ]memory",
        re.IGNORECASE,
    ),
    _SIGNAL,
    re.compile(
        r"^ssh: |srun: error(?!.*: Exited with exit code)|lost communication"
        r"|Connection (to \S+ )?(closed|reset|refused)|daemon"
    ),
    re.compile(r"^[\w.]*(Error|Exception): |error while loading shared libraries"),
    re.compile(r"peer process"),
    _EXIT_CODE,
)


def parse_rank_loss(log: str) -> str:
    """Find the cause of a lost rank in a log, as one line; empty if the log is empty.

    Each message is ranked by how surely it names a cause, and the first of the surest is taken. If
    no message has a known form, it is the first message of mpirun, else the last three lines. A
    long cause is cut.

    Examples:
        >>> parse_rank_loss("srun: error: host2: task 1: Killed")
        'srun: error: host2: task 1: Killed'
    """
    statements = list(_drop_bystanders(_split_log(log)))
    surest = min(statements, key=_doubt, default=_Statement("", is_block=False))
    cause = surest.text
    if _doubt(surest) >= len(_CAUSES):
        # No message has the form of a known cause.
        blocks = [statement.text for statement in statements if statement.is_block]
        lines = [statement.text for statement in statements if not statement.is_block]
        cause = " ".join(blocks[:1] or lines[-3:])
    if len(cause) <= _MAX_CHARACTERS:
        return cause
    return cause[:_MAX_CHARACTERS].rpartition(" ")[0] + " ..."


def names_signal(log: str) -> bool:
    """Return whether a log says that a signal has ended a rank, and not srun after another one.

    Examples:
        >>> names_signal("srun: error: host2: task 1: Segmentation fault")
        True
    """
    statements = _drop_bystanders(_split_log(log))
    return any(_SIGNAL.search(statement.text) for statement in statements)


def drop_noise(log: str) -> str:
    """Return a log without the lines that never name a cause."""
    return "\n".join(line for line in log.splitlines() if not _NOISE.search(line))


class _Statement(NamedTuple):
    """A message of mpirun between two rules, or any other line."""

    text: str
    is_block: bool


def _doubt(statement: _Statement) -> int:
    """Return a number for how surely a statement names a cause; the lower, the surer.

    It is the index of the first pattern of `_CAUSES` that the statement has, then one number for
    unknown messages, and the highest for consequences of a loss.
    """
    if _CONSEQUENCE.search(statement.text):
        return len(_CAUSES) + 1
    for doubt, pattern in enumerate(_CAUSES):
        if pattern.search(statement.text):
            return doubt
    return len(_CAUSES)


def _drop_bystanders(statements: Iterable[_Statement]) -> Iterator[_Statement]:
    """Yield the statements except those about ranks that srun itself has ended.

    After the first rank that ends badly, srun ends all others (`--kill-on-bad-exit`), and reports
    them as it reports ranks that anyone else has killed.
    """
    has_ended_rank = False
    for statement in statements:
        if has_ended_rank and _SIGNAL_OF_SLURM.search(statement.text):
            continue
        if _END_OF_RANK.search(statement.text):
            has_ended_rank = True
        yield statement


def _split_log(log: str) -> Iterator[_Statement]:
    """Yield the statements of a log; the text between two rules is one, other lines one each."""
    # Sections with odd numbers lie between two rules.
    for index, section in enumerate(_RULE.split(log)):
        is_block = index % 2 == 1
        lines = drop_noise(section).splitlines()
        if is_block:
            lines = [_shorten(lines)]
        for line in lines:
            text = " ".join(line.split())
            if text:
                yield _Statement(text, is_block)


def _shorten(lines: list[str]) -> str:
    """Put a message of mpirun on one line.

    A long one is cut to its first sentence and its lines such as `Remote host: host2`.
    """
    text = " ".join(" ".join(lines).split())
    if len(text) <= _MAX_CHARACTERS:
        return text
    first_sentence = re.split(r"(?<=\.) ", text, maxsplit=1)[0]
    details = [line for line in lines if _DETAIL.match(line)]
    return " ".join([first_sentence, *details])
