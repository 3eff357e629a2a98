"""`compare --study NAME`: makes a study in the run folder, or all shipped studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hep_studies.claim_texts import count_verdicts, protocol_text
from hep_studies.judging import judge
from hep_studies.measures import measure_of
from hep_studies.study_files import Study, study_names
from hep_studies.study_notes import cautions, notes
from hep_studies.study_output import (
    check_publishable,
    publish_output,
    remove_output,
    terminal_table,
    write_output,
)
from hep_studies.study_result import StudyResult
from hep_studies.study_runs import figure_labels, run_study
from pipeline.errors import USER_ERRORS
from pipeline.run_folder import RunFolder
from pipeline.runs.provenance import code_version
from pipeline.terminal.exit_codes import stop_if_requested
from training.errors import StudyError
from training.threads import use_threads


def compare(
    run_folder: RunFolder,
    study: Study,
    *,
    command: str,
    force: bool = False,
    publish: Path | None = None,
) -> Path:
    """Make the missing runs of a study, and its tables, figures and page; return the page's path.

    All files lie in `<run_dir>/compare/<name>/`. The table and the verdicts on the claims are also
    printed.

    Args:
        run_folder: Has the events, and gets the files.
        study: The study.
        command: The command line, for the page.
        force: Whether to remove all runs first and make them again.
        publish: Folder for a copy of page, figures and packed result, such as `docs/studies`. Code
            with uncommitted changes is refused.

    Raises:
        MissingInputError: There are no features yet.
        TrainingError: A run fails; the message names it.
    """
    use_threads(run_folder.config.train.threads)
    if publish is not None:
        check_publishable([code_version()])
    # No second process may make the studies of this run folder meanwhile.
    with run_folder.locked("compare"):
        folder = run_folder.config.run_dir / "compare" / study.name
        if force:
            remove_output(folder)
        folder.mkdir(parents=True, exist_ok=True)
        result = run_study(run_folder, study, folder, command)
        if publish is not None:
            check_publishable([run.made_with for run in result.runs])
        table = terminal_table(result)
        page = write_output(result, table, folder, figure_labels(run_folder, result))
        if publish is not None:
            page = publish_output(result, folder, publish)
        run_folder.console.print(table)
        _report_verdicts(run_folder, result)
    return page


def _report_verdicts(run_folder: RunFolder, result: StudyResult) -> None:
    """Print the verdicts on the claims and the notes, and count them for the notification."""
    claims = judge(result)
    counts = count_verdicts(claims) or "none"
    run_folder.results.add(f"study {result.name}: {len(result.runs)} runs, claims: {counts}")
    for judged in claims:
        claim = judged.claim
        row = f"{measure_of(claim.measure).label}, {protocol_text(claim)}"
        if judged.is_second:
            # A further row stands below its claim.
            run_folder.say(f"    {judged.verdict}: {row}")
        else:
            run_folder.say(f"  {judged.verdict}: {claim.says} ({row})")
    for sentence in cautions(result, claims) + notes(result, claims):
        run_folder.say(f"  {sentence}")


def make_all(make: Callable[[str], None], report: Callable[[str], None]) -> None:
    """Make every study that comes with the code, one after the other.

    A study that fails is reported, and the next one begins. An interrupt ends all at once. `make`:
    makes a study by its name. `report`: prints a line.

    Raises:
        StudyError: Studies fail; the message names them.
    """
    names = study_names()
    failed = []
    for position, name in enumerate(names, 1):
        report(f"compare: study {name}, {position} of {len(names)}")
        try:
            make(name)
        except USER_ERRORS as error:
            stop_if_requested()
            report(f"compare: study {name} failed: {error}")
            failed.append(name)
    if failed:
        raise StudyError(
            f"compare: {len(failed)} of {len(names)} studies failed, as said above: "
            f"{', '.join(failed)}."
        )
