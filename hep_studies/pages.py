"""The page of a study and the page of claims: what fills their templates."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hep_studies.judging import OPEN, JudgedClaim, Pair, Verdict, judge
from hep_studies.measures import Measure, lowest_loss, measure_of
from hep_studies.study import Claim, StudyTable, short
from hep_studies.study_result import Cell, StudyResult
from models.evaluation.rounding import with_error

#: Relative spread below which a number has none: rounding.
_VISIBLE: Final = 1e-6
_LAST: Final = 0.75


def study_table(result: StudyResult, table: StudyTable) -> str:
    """A table of the study: mean over the seeds, standard deviation, standard error."""
    study, key = result.study, table.over
    rows: dict[str, list[str]] = {}
    header = [measure_of(name).words for name in table.measures]
    # Over a key: a row for each method and other values, a column for each measure and value.
    values = study.all_values_of(key) if key else [None]
    if key:
        value_words = [f"{short(key)} {json.dumps(value)}" for value in values]
        header = [f"{measure}, {words}" for measure in header for words in value_words]
    for cell in result.cells(table.methods):
        row = rows.setdefault(result.title(cell.without(key)), ["-"] * len(header))
        for column, (name, value) in enumerate(itertools.product(table.measures, values)):
            # A method without the key fills all columns of a measure.
            if key not in cell.plain or cell.plain[key] == value:
                row[column] = summed_up(result, cell, name)
    if table.given:
        given = {study.title_of(method): text for method, text in table.given.items()}
        header.append(study.source)
        rows = {title: [*row, given.get(title, "-")] for title, row in rows.items()}
    return markdown_table(["", *header], [[title, *row] for title, row in rows.items()])


def summed_up(result: StudyResult, cell: Cell, name: str) -> str:
    """A measure of a cell: mean, standard deviation and standard error over the seeds, and how many runs diverged."""
    measure, runs, values = measure_of(name), result.runs_of(cell), result.numbers(cell, name)
    gone = 0 if name == "diverged" else len(runs) - len(result.with_result(cell))
    if values.empty:
        return "diverged" if gone else "-"
    finite = values[np.isfinite(values)]
    words = [measure.text(values.iloc[0] if finite.empty else finite.mean())]
    if measure.percent and len(finite) > 1:
        words[0] += f" ± {100 * finite.std():.2f} (s.e. {100 * finite.sem():.2f})"
    elif finite.std() > _VISIBLE * abs(finite.mean()):
        words[0] += f" ± {measure.text(finite.std())}"
    lost = {
        "diverged": gone,
        measure.text(math.inf): 0 if finite.empty else len(values) - len(finite),
    }
    return "; ".join(
        [*words, *(f"{what} in {count} of {len(runs)}" for what, count in lost.items() if count)]
    )


def settings_table(result: StudyResult) -> str:
    """What all methods share, and a row for each method with what it sets and varies, and the events that it saw."""
    study = result.study
    first = {
        method: study.train_settings(method, next(study.combinations(method)), 1)
        for method in study.methods
    }
    settings = pd.json_normalize(
        [json.loads(json.dumps(train.result_items())) for train in first.values()]
    )
    varied = {key.removeprefix("train.") for key in study.vary}
    settings = settings.drop(columns=[name for name in settings if name in {"seed", *varied}]).map(
        lambda value: "" if value in (None, [], {}) or value != value else str(value)  # noqa: PLR0124 - NaN
    )
    is_shared = settings.nunique() == 1
    chosen = study.workload
    workload = chosen if isinstance(chosen, str) else f"{chosen.name}, {chosen.network_name}"
    shared = [f"{name} {value}" for name, value in settings.loc[0, is_shared].items() if value]
    shared += [f"{key} {json.dumps(value)}" for key, value in study.cluster.items()]
    rows = []
    for method, (_, own) in zip(study.methods, settings.loc[:, ~is_shared].iterrows(), strict=True):
        tried = [
            f"{short(key)} {', '.join(map(json.dumps, study.values_of(method, key)))}"
            for key in next(study.combinations(method))
        ]
        words = [f"{name} {value}" for name, value in own.items() if value]
        seen = result.events_seen(*result.cells([method]))
        rows.append([study.title_of(method), "; ".join(words), "; ".join(tried), seen])
    table = markdown_table(["", "set", "varied", "events seen by all workers"], rows)
    return f"All: {workload}; {'; '.join(shared)}.\n\n{table}"


def sweep_table(result: StudyResult) -> str:
    """The sweep of the keys of `best_of`: lowest validation loss and test accuracy of each method at each value."""
    every = {tried for found in result.groups.values() for tried in found}
    columns = sorted(
        every,
        key=lambda cell: [v if isinstance(v, int | float) else 0.0 for v in cell.plain.values()],
    )
    rows = []
    for cell in result.cells():
        best, row = result.best(cell), [result.title(cell)]
        for tried in columns:
            runs = result.groups[cell].get(tried, [])
            text = "-"
            if gone := sum(run.has_diverged for run in runs):
                text = f"diverged in {gone} of {len(runs)}"
            elif runs:
                accuracy = np.mean([run.counts.weighted_accuracy for run in runs if run.counts])
                text = f"{np.mean([lowest_loss(run) for run in runs]):.4f}; {100 * accuracy:.2f} %"
            row.append(f"**{text}**" if tried == best else text)
        edges = []
        for key, value in best.plain.items():
            values = result.study.values_of(cell.method, key)
            if len(values) > 1 and all(isinstance(each, int | float) for each in values):
                edges += [
                    name
                    for name, end in (("lowest", min(values)), ("highest", max(values)))
                    if value == end
                ]
        rows.append(
            [*row, "; ".join(f"the {edge} tried: a better one may lie beyond" for edge in edges)]
        )
    header = [", ".join(f"{short(key)} {text}" for key, text in each.values) for each in columns]
    return markdown_table(["", *header, "best"], rows)


def _learnt(result: StudyResult) -> dict[str, Any]:
    """Numbers of the note on the binomial error of every accuracy, and on the runs that were best near their end."""
    runs = [run for cell in result.cells() for run in result.with_result(cell)]
    accuracy = pd.Series(
        [run.counts.weighted_accuracy for run in runs if run.counts], dtype=np.float64
    ).mean()
    effective = result.weights.sum() ** 2 / np.square(result.weights).sum()
    return {
        "accuracy": accuracy,
        "number": len(result.weights),
        "effective": effective,
        "error": math.sqrt(accuracy * (1 - accuracy) / effective),
        "late": [run.numbers["best_epoch"] >= _LAST * len(run.curves["val_loss"]) for run in runs],
    }


def notes(result: StudyResult, claims: Sequence[JudgedClaim] = ()) -> list[str]:
    """Sentences about runs that diverged, comparisons, steps without effect and lost averages; none if all is well."""
    rows = [
        {"title": result.study.title_of(run.method), "gone": run.has_diverged, **run.numbers}
        for run in result.runs
    ]
    table = pd.DataFrame(
        rows, columns=["title", *sorted({key for row in rows for key in row} - {"title"})]
    )
    sums: Mapping[str, Any] = table.groupby("title", sort=False).sum(numeric_only=True)
    templates = {
        "gone": f"{{}} of {len(rows)} runs diverged to a loss that is not finite: of {{}}. Tables, figures and "
        f"comparisons are of the other runs.",
        "steps_not_finite": "{} steps had no effect, since a gradient or an update was not finite: of {}.",
        # Both sides of a pair count an average that is left out.
        "averages_lost": "Workers left out {} averages, counted on both sides of a pair: of {}.",
    }
    found = []
    for name, template in templates.items():
        if name in sums and sums[name].sum():
            words = ", ".join(
                f"{title} {number:,.0f}" for title, number in sums[name].items() if number
            )
            found.append(template.format(f"{sums[name].sum():,.0f}", words))
    pairs = [pair for claim in claims for pair in claim.pairs if pair.why_not]
    found += [
        f"Not compared, {pair.why_not}: {result.title(pair.this)} against {result.title(pair.other)}."
        for pair in pairs
    ]
    return list(dict.fromkeys(found))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown.

    Examples:
        >>> print(markdown_table(["a", "b"], [[1, 2]]))
        |a|b|
        |---|---|
        |1|2|
    """
    body = [
        "|" + "|".join(str(cell).replace("|", "\\|") for cell in line) + "|"
        for line in (header, *rows)
    ]
    return "\n".join([body[0], "|" + "---|" * len(header), *body[1:]])


def render(result: StudyResult, *, folder: str) -> str:
    """The page of a study; `folder`: that of the figures, relative to the page."""
    claims, seeds = judge(result), sorted({run.seed for run in result.runs})
    return _fill(
        "study.md.j2",
        study=result.study,
        result=result,
        folder=folder,
        seeds=" to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1])))),
        claims=claims,
        settings=settings_table(result),
        tables=[(table.title, study_table(result, table)) for table in result.study.tables],
        learnt=_learnt(result) if result.study.times_only is None else None,
        notes=notes(result, claims),
        sweep=sweep_table(result) if result.study.best_of else "",
    )


def render_claims(
    results: Mapping[str, StudyResult], *, command: str, evaluations: Sequence[Any] = ()
) -> str:
    """The page of claims, made by a command, of results by the link to the page of each study."""
    studies = {
        link: (result, found) for link, result in results.items() if (found := judge(result))
    }
    return _fill(
        "claims.md.j2",
        named={
            f"{result.name}/{each.claim.name}": each
            for result, found in studies.values()
            for each in found
        },
        studies=studies.items(),
        claims=[each for _, found in studies.values() for each in found],
        command=command,
        evaluations=evaluations,
    )


def _fill(template: str, **values: Any) -> str:
    made = Environment(  # noqa: S701
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True
    )
    for function in (
        counted,
        effect,
        measure_of,
        short,
        with_error,
        _claimed,
        _margin,
        _mark,
        _protocol,
        _quoting,
    ):
        made.filters[function.__name__.lstrip("_")] = function
    text = made.get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _quoting(paragraphs: str, named: Mapping[str, JudgedClaim]) -> Iterator[str]:
    """Those paragraphs whose claims have the verdicts that they name, `<study/claim=verdict>`, with the effects."""
    for paragraph in paragraphs.strip().split("\n\n"):
        sentence = " ".join(paragraph.split())
        for place, verdict in re.findall(r"<([^<>=]+)=([^<>]+)>", sentence):
            judged = named.get(place)
            if judged is None or judged.decisive is None or judged.verdict != verdict:
                break
            sentence = sentence.replace(f"<{place}={verdict}>", effect(judged.decisive))
        else:
            yield sentence


def counted(claims: Sequence[JudgedClaim]) -> str:
    """How many claims have each verdict, in words."""
    found = [each.verdict for each in claims]
    return ", ".join(f"{found.count(verdict)} {verdict}" for verdict in Verdict if verdict in found)


def effect(pair: Pair | None) -> str:
    """A difference and its interval: points of accuracy, factors, or plain numbers."""
    if pair is None or not math.isfinite(pair.difference.value):
        return "-"
    measure, (low, high) = measure_of(pair.claim.measure), pair.difference.ends(pair.level)
    ends = f"{_sized(low, measure)}..{_sized(high, measure)}" if math.isfinite(high) else "?"
    return f"{_sized(pair.difference.value, measure)} ({ends})"


def _sized(number: float, measure: Measure) -> str:
    """A difference in the unit in which its measure compares, to a tenth of what counts as none."""
    if measure.is_ratio:
        return f"x{math.exp(number):#.3g}"
    digits = max(0, 1 - math.floor(math.log10(measure.margin)))
    return f"{100 * number:+.2f}" if measure.percent else f"{number:+.{digits}f}"


def _protocol(claim: Claim) -> str:
    at = ", ".join(f"{short(key)} {value}" for key, value in claim.at.items())
    return "best" if claim.protocol == "each at its best" else f"equal, {at}" if at else "equal"


def _claimed(claim: Claim) -> str:
    measure = measure_of(claim.measure)
    if claim.is_of_equals:
        return f"within {_margin(claim)}"
    return (
        _sized(math.log(claim.size) if measure.is_ratio else claim.size, measure)
        if claim.size
        else "more"
    )


def _margin(claim: Claim) -> str:
    measure = measure_of(claim.measure)
    in_percent = measure.percent or measure.is_ratio
    return f"{claim.least * (100 if in_percent else 1):.3g}{'%' * measure.is_ratio}"


def _mark(judged: JudgedClaim) -> str:
    reason = f": {judged.reason}" if judged.reason else ""
    return f"{judged.verdict}{reason}" if judged.verdict in OPEN else f"**{judged.verdict}**"
