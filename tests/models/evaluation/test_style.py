"""Figures are saved on any machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from models.evaluation.style import (
    NO_LABELS,
    new_figure,
    save_figure,
)


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs the rights of root"
)
def test_figures_are_saved_where_processes_share_no_semaphores(tmp_path: Path) -> None:
    """Semaphores lie in /dev/shm, which some containers protect."""
    script = """
import sys
from pathlib import Path
from models.evaluation.style import NO_LABELS, new_figure, saving_in_processes
figure, axes = new_figure(NO_LABELS)
axes.plot([0, 1], [2, 3])
with saving_in_processes() as save:
    save(figure, Path(sys.argv[1]))
"""
    in_container = 'mount -t tmpfs -o ro tmpfs /dev/shm && exec "$@"'
    unshare = ["unshare", "--mount", "sh", "-c", in_container, "sh"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    draw = [sys.executable, "-c", script, str(tmp_path / "there")]

    subprocess.run([*unshare, *draw], env=environment, check=True)

    figure, axes = new_figure(NO_LABELS)
    axes.plot([0, 1], [2, 3])
    save_figure(figure, tmp_path / "here")
    for suffix in (".png", ".pdf"):
        saved = (tmp_path / f"there{suffix}").read_bytes()
        assert saved == (tmp_path / f"here{suffix}").read_bytes()
