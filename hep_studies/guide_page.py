"""The texts of the guide which method to take, and of the situations on the page of a study."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from hep_studies.guide import (
    REQUIRED_SHARE,
    Contender,
    DataGroup,
    Record,
    Situation,
    data_groups,
    judge_situations,
    largest_count_left_out,
    situation_keys,
)
from hep_studies.sample_texts import EVENTS, rows_title, sample_of, workload_title
from hep_studies.study import StudySettings, key_label
from hep_studies.study_result import StudyResult
from hep_studies.tables import markdown_table
from hep_studies.tuning import is_number
from models.evaluation.rounding import with_error

#: Number of tied methods that a cell of the guide names; it counts the others.
_MOST_NAMED: Final = 3
_TIMES: Final = "\N{MULTIPLICATION SIGN}"
#: Mark of a method that is fastest at the lowest or highest rate tried.
_AT_EDGE: Final = "\N{DAGGER}"


class StudyGuide(NamedTuple):
    """What a study contributes to the guide."""

    link: str
    """Link to its page."""
    result: StudyResult
    groups: list[DataGroup]
    """Its situations by the data of workers."""

    @property
    def situations(self) -> list[Situation]:
        """All its situations."""
        return list(itertools.chain.from_iterable(group.situations for group in self.groups))

    @property
    def title(self) -> str:
        """What the study trains."""
        title = workload_title(self.result.study)
        return title[0].upper() + title[1:]

    @property
    def sample(self) -> str:
        """Its rows and seeds."""
        return sample_of(self.result)

    @property
    def events_note(self) -> str:
        """What its events are, such as "technical sample"; empty for other rows."""
        if rows_title(self.result.study) != EVENTS:
            return ""
        return self.result.events["sample_note"]

    @property
    def workers(self) -> str:
        """Its workers and the time of their step, to which that of messages compares."""
        study = self.result.study
        settings = study.first_settings(study.reference)
        step_seconds = study.cluster_settings({}).step_of(settings.batch_size)
        return f"{settings.workers} workers, a step of {1e3 * step_seconds:g} ms"

    @property
    def demonstration(self) -> str:
        """Why it is too small to judge by; empty if it is not."""
        return self.result.study.demonstration

    @property
    def heading(self) -> str:
        """Heading of its column in a table."""
        return f"{self.title} (a demonstration)" if self.demonstration else self.title

    @property
    def advice(self) -> list[str]:
        """Sentences that choose: for equal data of workers, and for skewed ones."""
        return [f"{self._start(group)}: {self._advice(group)}" for group in self.groups]

    def _start(self, group: DataGroup) -> str:
        """Return what an advice is for, such as "**Skewed data**, LeNet-5 on ..."."""
        if not group.name:
            return f"**{self.title}**"
        return f"**{group.name.capitalize()} data**, {workload_title(self.result.study)}"

    def _advice(self, group: DataGroup) -> str:
        if self.demonstration:
            return "no advice follows from a demonstration."
        return f"{_best_record_text(group)} {_reaching_text(group)}"

    @property
    def checks(self) -> str:
        """A sentence on the checks of the simulated times by ranks."""
        checks = self.result.checks
        used = [check for check in checks if not check.refused]
        machine = self.result.provenance.machine
        text = (
            f"{self.title}: on {machine.cores} cores of one host, ranks sent the messages of "
            f"{len(checks)} methods, and {len(used)} checks are used"
        )
        if not used:
            return f"{text}."
        longest_sleep = max(check.slept for check in used)
        gaps = [100 * check.gap / check.simulated for check in used]
        return (
            f"{text}; steps, in which ranks sleep {1e3 * longest_sleep:g} ms, took "
            f"{_signed_percent(min(gaps))} to {_signed_percent(max(gaps))} % longer than simulated."
        )

    @property
    def power(self) -> str:
        """A sentence on what these seeds and rows cannot tell apart."""
        situation = max(self.situations, key=lambda situation: len(situation.contenders))
        num_runs = situation.contenders[0].times.num_runs
        num_rivals = len(situation.contenders) - 1
        largest_count = largest_count_left_out(num_runs, num_rivals)
        text = "no share of runs leaves a method out"
        if largest_count is not None:
            text = f"a share of at most {largest_count} of {num_runs} runs leaves a method out"
        num_rows = self.result.events["counts"]["val"][-1]
        error = math.sqrt(situation.goal * (1 - situation.goal) / num_rows)
        return (
            f"{text}; accuracies on {num_rows:,} validation rows share a binomial error of "
            f"{100 * error:.1f} points"
        )


def study_guides(results: Mapping[str, StudyResult]) -> list[StudyGuide]:
    """Return the guide of each study that varies situations, the one of most situations first.

    `results`: the studies, by the link to the page of each.
    """
    guides = []
    for link, result in results.items():
        groups = data_groups(result)
        if groups:
            guides.append(StudyGuide(link, result, groups))
    return sorted(guides, key=lambda guide: -len(guide.situations))


def _signed_percent(percent: float) -> str:
    """Return a rounded number with its sign; 0 has none."""
    rounded = round(percent)
    return f"{rounded:+d}" if rounded else "0"


def _best_record_text(group: DataGroup) -> str:
    """Return a sentence on the method that disappoints least in situations of the same data."""
    record = group.records[0]
    num_situations = len(group.situations)
    if not record.num_reached:
        return "no method reaches the accuracy in any situation."
    if record.num_missed:
        return (
            f"no method reaches the accuracy in all {num_situations} situations; {record.title} "
            f"does in the most, {record.num_reached}."
        )
    return (
        f"in doubt take {record.title}, which cannot be told apart from the fastest method in "
        f"{record.num_best} of {num_situations} situations; in these runs its mean time is at most "
        f"{record.worst_factor:.1f} times that of the fastest."
    )


def _reaching_text(group: DataGroup) -> str:
    """Return a sentence on the methods that reach the accuracy, by name if they are few."""
    of_runs = f"with at least {100 * REQUIRED_SHARE:g} % of its runs"
    titles = [record.title for record in group.records if record.num_reached]
    num_methods = len(group.records)
    if not titles:
        return ""
    if len(titles) > num_methods / 2:
        num_everywhere = sum(not record.num_missed for record in group.records)
        return (
            f"{num_everywhere} of {num_methods} methods reach the accuracy in all, each {of_runs}."
        )
    if len(titles) == 1:
        return f"No other of {num_methods} methods reaches the accuracy in any {of_runs}."
    names = f"{', '.join(titles[:-1])} and {titles[-1]}"
    return f"Of {num_methods} methods, only {names} reach the accuracy in any, each {of_runs}."


def guide_table(guides: Sequence[StudyGuide]) -> str:
    """Return the table of the guide: a row for each situation, a column for each study.

    Studies that name their situations alike share rows. A study without a key has "-" for it.
    """
    keys = _all_situation_keys(guides)
    header = [key_label(key) for key in keys]
    for guide in guides:
        # All situations of a study have one goal.
        goal = _percent(guide.situations[0].goal)
        header.append(f"{guide.heading}, to {goal}")

    texts_by_names: dict[tuple[str, ...], list[str]] = {}
    for column, guide in enumerate(guides):
        keys_of_study = situation_keys(guide.result)
        for situation in guide.situations:
            name_by_key = dict(zip(keys_of_study, situation.names, strict=True))
            names = tuple(name_by_key.get(key, "-") for key in keys)
            texts = texts_by_names.setdefault(names, ["-"] * len(guides))
            texts[column] = _best_text(situation)
    rows = [[*names, *texts] for names, texts in texts_by_names.items()]
    return markdown_table(header, rows)


def _all_situation_keys(guides: Sequence[StudyGuide]) -> list[str]:
    """Return the keys of the situations of all studies, in the order of the studies."""
    # A dictionary keeps the order, and a key that studies share once.
    keys: dict[str, None] = {}
    for guide in guides:
        keys |= dict.fromkeys(situation_keys(guide.result))
    return list(keys)


def _percent(accuracy: float) -> str:
    return f"{100 * accuracy:.2f} %"


def _best_text(situation: Situation) -> str:
    """Return the best methods of a situation: the time of the first, factors of the others."""
    if not situation.best:
        first = situation.contenders[0]
        return f"none; {first.title} with {_reached_text(first)}"
    first, *tied = situation.best
    texts = [f"{_title(first)} {_seconds(first)} s{_share_text(first)}"]
    texts += [
        f"{_title(rival)} {_factor(rival.factor, rival.factor_error)}{_share_text(rival)}"
        for rival in tied[: _MOST_NAMED - 1]
    ]
    num_unnamed = len(situation.best) - len(texts)
    if num_unnamed:
        texts.append(f"{num_unnamed} more")
    return "; ".join(texts)


def _reached_text(contender: Contender) -> str:
    """Return how many runs of a method reach the accuracy, such as "4 of 5"."""
    return f"{contender.times.num_reached} of {contender.times.num_runs}"


def _share_text(contender: Contender) -> str:
    """Return in brackets how many runs of a method reach the accuracy; empty if all do."""
    if contender.times.num_reached == contender.times.num_runs:
        return ""
    return f" ({_reached_text(contender)})"


def _title(contender: Contender) -> str:
    """Return the name of a method: bold if it is among the best, with a mark at an edge."""
    title = f"**{contender.title}**" if contender.is_among_best else contender.title
    return f"{title}{_AT_EDGE}" if contender.is_at_edge else title


def _seconds(contender: Contender) -> str:
    """Return the time to the goal with its error [s]; "-" if no run reaches it."""
    if not contender.times.num_reached:
        return "-"
    return _with_error(contender.times.seconds, contender.times.error)


def _factor(factor: float, error: float = math.nan) -> str:
    """Return a factor of times with its error; "-" for one that is not known."""
    if math.isnan(factor):
        return "-"
    return f"{_TIMES}{_with_error(factor, error)}"


def _with_error(value: float, error: float) -> str:
    """Return a number with its error; three digits where the error is not known or is 0."""
    if math.isnan(value):
        return "-"
    return with_error(value, error) if error > 0 else f"{value:.3g}"


def records_table(guides: Sequence[StudyGuide]) -> str:
    """Return a table of the records of all methods: a row for each, a column for each data."""
    header = [""]
    columns: list[dict[str, str]] = []
    for guide in guides:
        for group in guide.groups:
            header.append(_heading_of_group(guide, group))
            columns.append({record.title: _record_text(record) for record in group.records})

    # A dictionary keeps the order, and a method of several columns once.
    titles: dict[str, None] = {}
    for column in columns:
        titles |= dict.fromkeys(column)
    rows = []
    for title in titles:
        texts = [column.get(title, "-") for column in columns]
        rows.append([title, *texts])
    return markdown_table(header, rows)


def _heading_of_group(guide: StudyGuide, group: DataGroup) -> str:
    """Return the heading of a column of records: the study, its data, the number of situations."""
    data = ""
    if group.name:
        data = f", {group.name} data"
    return f"{guide.heading}{data}, of {len(group.situations)}"


def _record_text(record: Record) -> str:
    """Return the record of a method, such as "level in 5; misses 2; else up to x3.1"."""
    texts = [f"level in {record.num_best}", f"misses {record.num_missed}"]
    if not math.isnan(record.worst_factor):
        texts.append(f"else up to {_factor(record.worst_factor)}")
    return "; ".join(texts)


def situations_table(result: StudyResult) -> str:
    """Return a table of every method in every situation of a study; empty if it varies none."""
    rows: list[list[str]] = []
    for situation in judge_situations(result):
        rows += [_row_of_contender(situation, contender) for contender in situation.contenders]
    if not rows:
        return ""
    header = ["situation", "accuracy to reach", "method", "time to it [s]", "behind the fastest"]
    header += ["test accuracy [%]", "bytes of a worker and epoch", "runs that reach it", "diverged"]
    return markdown_table(header, rows)


def _row_of_contender(situation: Situation, contender: Contender) -> list[str]:
    """Return the row of a method in a situation, for the table of the study's page."""
    return [
        ", ".join(situation.names),
        _percent(situation.goal),
        _title(contender),
        _seconds(contender),
        _factor(contender.factor, contender.factor_error),
        _with_error(100 * contender.accuracy, 100 * contender.accuracy_error),
        f"{contender.bytes_sent:,.0f}",
        _reached_text(contender),
        f"{contender.num_diverged}",
    ]


def situation_settings(study: StudySettings) -> str:
    """Return a table of what each situation of a study sets; empty without any."""
    rows = []
    for key, named_values in study.situations.items():
        for name, values in named_values.items():
            texts = [f"{setting} {_value_text(value)}" for setting, value in values.items()]
            rows.append([key.replace("_", " "), name, "; ".join(texts)])
    return markdown_table(["", "situation", "sets"], rows) if rows else ""


def _value_text(value: Any) -> str:
    """Return a value of a key as text; a number without digits that say nothing."""
    return f"{value:g}" if is_number(value) else json.dumps(value)
