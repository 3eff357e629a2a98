"""Commands that mpirun or srun started once for each rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import SAMPLES, small_config
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.errors import MachineError
from pipeline.machine.outer_ranks import refuse_outer_ranks
from pipeline.runs.lock import locked
from pipeline.terminal.exit_codes import Exit


@pytest.mark.parametrize(
    ("env", "launcher"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}, "mpirun"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "mpirun"),
        ({"SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2"}, "srun"),
    ],
)
def test_a_copy_for_each_rank_is_refused(env: dict[str, str], launcher: str) -> None:
    with pytest.raises(MachineError, match=f"{launcher} started .* without {launcher}: `train` starts its own"):
        refuse_outer_ranks(env)


def test_a_command_under_mpirun_was_said_to_wait_for_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the second of two copies that mpirun started."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    config = small_config(tmp_path, SAMPLES)
    with locked(tmp_path / "run"):
        for words in (["train", "--workers", "2"], ["run"], ["status"], ["validate"]):
            done = CliRunner().invoke(app, [*words, "--config", str(config)])
            assert done.exit_code == Exit.USER_ERROR
            assert "mpirun started this command as one of 2 ranks" in " ".join(done.stderr.split())
            assert "in use" not in done.stderr
