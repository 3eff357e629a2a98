"""What `compare --force` removes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.commands.compare import _remove_written


def test_only_what_a_comparison_writes_is_removed(tmp_path: Path) -> None:
    for name in ("runs/hlf", "figures", "my-notes"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("result.json", "table.json", "page.md", "runs/hlf/a", "talk.pdf", "my-notes/a"):
        (tmp_path / name).write_text("x")
    _remove_written(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my-notes", "talk.pdf"]


def test_a_link_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "a").write_text("x")
    (tmp_path / "compare").mkdir()
    (tmp_path / "compare" / "runs").symlink_to(archive)
    with pytest.raises(OSError, match=r"symbolic link|runs"):
        _remove_written(tmp_path / "compare")
    assert (archive / "a").exists()
