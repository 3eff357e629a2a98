"""What the stage `simulate` keeps of interrupted work."""

from __future__ import annotations

from pathlib import Path

import pytest

from hep_simulation.simulate_stage import Simulate


@pytest.mark.parametrize(
    ("files", "can_continue"),
    [
        (["qcd/qcd_0.root", "qcd/qcd_0.json"], True),
        (["pile-up/0.npz"], True),
        (["qcd/qcd_0.json", "pile-up/0.npz"], True),
        # Neither has its record or its name yet.
        (["qcd/qcd_0.root", "pile-up/.0.npz.unfinished.npz", "qcd/made-from"], False),
        ([], False),
    ],
    ids=str,
)
def test_work_with_a_finished_file_is_continued(
    tmp_path: Path, files: list[str], can_continue: bool
) -> None:
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert Simulate().can_continue(tmp_path) is can_continue
