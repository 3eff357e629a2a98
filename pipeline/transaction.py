"""A stage as a transaction: a new folder, the work, its checks, the manifest, the pointer."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.markup import escape

from hep_core.allocation import lack_of_memory
from hep_core.input_errors import remote_error
from hep_core.storage import is_remote
from pipeline.configuration.credentials import hide_credentials
from pipeline.errors import CheckFailedError, RunFolderError, cannot_write, full_disk_error
from pipeline.planner import Planner
from pipeline.run_folder import RunFolder
from pipeline.runs import own_folders
from pipeline.runs.fingerprint import Fingerprint
from pipeline.runs.own_folders import claimed
from pipeline.runs.provenance import code_version, now, package_versions
from pipeline.runs.store import StageStore
from pipeline.stages.base import Context, Result, Stage, StageInputs
from pipeline.stages.parts import begin_parts
from pipeline.terminal.exit_codes import stop_if_requested


class Transaction:
    """Makes one version (complete output) of a stage, or none at all.

    The stage works in a new folder. Only after its checks have passed does a pointer file name
    the folder as the version in use.

    Args:
        run_folder: The run folder, which this process holds.
        planner: Makes fingerprints.
        stage: The stage.
        context: Everything that its work needs.
        fingerprint: The fingerprint before the work: a change during the work makes it stale again.
        afresh: Whether interrupted work with the same settings is thrown away.
    """

    def __init__(
        self,
        run_folder: RunFolder,
        planner: Planner,
        stage: Stage,
        context: Context,
        fingerprint: Fingerprint,
        *,
        afresh: bool,
    ) -> None:
        self._run_folder = run_folder
        self._planner = planner
        self._stage = stage
        self._context = context
        self._fingerprint = fingerprint
        self._afresh = afresh
        self._store: StageStore = run_folder.store(stage.name)

    def make_version(self) -> None:
        """Run the stage and put its new version in use; after a failure the old one stays.

        The steps are: create the folder, take over unchanged parts, work, check the result, write
        the manifest, set the pointer. A failure removes the folder, unless a later run can
        continue its work.

        Raises:
            CheckFailedError: The result fails a check of its own.
            RunFolderError: A file cannot be read or written.
        """
        stage, folder = self._stage, self._context.out_dir
        start_time = time.monotonic()
        try:
            self._create_folder()
            # Nobody removes the folder while it is written, whatever becomes of the lock.
            with claimed([folder]):
                self._begin_parts()
                result = stage.run(self._context)
                _check_result(stage, result)
                seconds = time.monotonic() - start_time
                stop_if_requested()
                self._commit(result, seconds)
        except BaseException as error:
            # After Ctrl-C too. A kill leaves an unfinished folder; the next run continues or
            # removes it. A version that the pointer names is published and stays.
            if not (self._store.is_in_use(folder) or stage.can_continue(folder)):
                self._store.discard(folder)
            file_error = _file_error(stage, self._context, error)
            if file_error is not None:
                raise file_error from error
            raise
        self._run_folder.log.event(
            "stage finished",
            stage=stage.name,
            version=folder.name,
            seconds=round(seconds, 3),
            summary=result.summary,
        )
        self._context.console.print(
            f"  {escape(result.summary)}  [dim]({seconds:.1f} s)[/]", highlight=False
        )

    def _create_folder(self) -> None:
        """Create the version folder, and remove folders of killed runs.

        Those stay whose work may be continued. The note in a folder is the digest of the inputs,
        config and code with which its work began.
        """
        digest = self._fingerprint.digest
        keep = [path for path in self._store.unfinished() if self._stage.can_continue(path)]
        if self._afresh:
            # Only the work with these settings is thrown away.
            keep = [path for path in keep if own_folders.read_note(path) != digest]
        self._store.create(self._context.out_dir, keep=keep, note=digest)

    def _begin_parts(self) -> None:
        """Give each part of the output its folder, and remove interrupted work that it took over.

        A part is, for example, one network of a training. A note is printed on each interrupted
        work that stays.
        """
        store, folder = self._store, self._context.out_dir
        begin_parts(store, self._context, self._fingerprint.parts, afresh=self._afresh)
        continued = [path for path in store.unfinished() if self._stage.can_continue(path)]
        store.remove_unfinished(keep=[folder, *continued])
        for note in self._planner.notes_on_unfinished(self._stage, skip=folder):
            self._run_folder.note(note)

    def _commit(self, result: Result, seconds: float) -> None:
        """Write the manifest of the finished work, and put the version in use.

        `seconds` is how long the work took.
        """
        context, fingerprint = self._context, self._fingerprint
        # Files may change between the check before the work and the moment when they are read.
        if result.inputs_read is not None:
            inputs = StageInputs(result.inputs_read)
            fingerprint = self._planner.fingerprint(self._stage, inputs, dict(context.upstream))
        with context.bar(self._stage.name, "") as bar:
            bar(0, 0, "writing the manifest")
            self._store.commit(
                context.out_dir,
                self._manifest(fingerprint, result, seconds),
                volatile=self._stage.volatile,
                digests=result.digests,
                taken_over=result.taken_over,
                taken_over_parts=context.taken_over_parts,
            )

    def _manifest(self, fingerprint: Fingerprint, result: Result, seconds: float) -> dict[str, Any]:
        """Return the manifest of the version, without the keys about its files, as JSON content."""
        upstream = self._context.upstream
        return {
            "stage": self._stage.name,
            "created": now(),
            "seconds": round(seconds, 3),
            "command": [hide_credentials(argument) for argument in sys.argv],
            "fingerprint": asdict(fingerprint),
            "upstream": {name: version.name for name, version in upstream.items()},
            "config": self._context.config.model_dump(mode="json"),
            "code_version": code_version(),
            "packages": package_versions(),
            "inputs": result.inputs,
            "counters": result.counters,
            "checks": [check._asdict() for check in result.checks],
        }


def _check_result(stage: Stage, result: Result) -> None:
    """Refuse a result that fails any of its checks.

    Raises:
        CheckFailedError: A check failed; the message lists all that did.
    """
    failed = [f"  {check.name}: {check.detail}" for check in result.checks if not check.passed]
    if failed:
        lines = "\n".join(failed)
        raise CheckFailedError(
            f"the output of {stage.name} failed its own checks and was not published:\n{lines}\n"
            f"This is a bug or a damaged disk; run again, and report it if it stays."
        )


def _file_error(stage: Stage, context: Context, error: BaseException) -> Exception | None:
    """Return a readable error for a failure of object storage, of the disk or of a file.

    The causes are tried in this order: object storage; a full disk, or a file in the version
    folder; any other file, which is probably a damaged output of an earlier stage.

    Args:
        stage: The stage that failed.
        context: What its work needed.
        error: The exception that ended the work.

    Returns:
        None for a lack of memory, and for errors that have nothing to do with files.
    """
    if lack_of_memory(error):
        return None
    full_disk, folder = full_disk_error(error), context.out_dir
    system_error = full_disk or error
    # Errors of local files name them.
    file_name = getattr(system_error, "filename", None)
    if (
        is_remote(context.data_dir)
        and isinstance(error, Exception)
        and not (full_disk or file_name)
    ):
        problem = remote_error(str(context.data_dir), where="the storage", cause=error)
        if problem:
            return problem
    if full_disk or (file_name is not None and Path(file_name).is_relative_to(folder)):
        return cannot_write(folder.parent, system_error)
    is_of_pyarrow = type(error).__module__.startswith("pyarrow")
    if not (isinstance(error, OSError) or is_of_pyarrow):
        return None
    return RunFolderError(
        f"{stage.name} failed on a file ({type(error).__name__}: {str(error).strip()}). If it "
        f"belongs to an earlier stage, that output is damaged: run the stage again with --force."
    )
