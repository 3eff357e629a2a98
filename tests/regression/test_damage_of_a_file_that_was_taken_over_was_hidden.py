"""The next version hashed the files that it took over anew, so `status --verify` called a damaged one unchanged."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest
from command_line import SAMPLES, small_config
from rich.console import Console

from pipeline.commands.status import verify
from pipeline.config import Config, load_config
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.stages.base import Context, Part, Result, Stage


class Networks(Stage):
    """Two networks; one that changed is trained again."""

    name: ClassVar[str] = "train"

    def __init__(self, **seeds: int) -> None:
        self.seeds = seeds

    def entry_points(self, config: Config) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def parts(self, config: Config) -> dict[str, Part]:  # noqa: ARG002
        return {name: Part({"seed": seed}, (), ()) for name, seed in self.seeds.items()}

    def run(self, context: Context) -> Result:
        for name in self.seeds.keys() - context.taken_over_parts:
            (context.out_dir / name / "weights.pt").write_bytes(bytes(1000))
            (context.out_dir / name / "run.json").write_text('{"seconds": 1}')
        return Result(summary="trained")


def refuse(*_: Any) -> NoReturn:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("has_links", [True, False])
def test_a_flipped_byte_stays_known_until_the_network_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))
    runner, store = Runner(run_folder), run_folder.store("train")
    runner._run_stage(Networks(hlf=1, particles=1), force=False)
    first = store.current()
    assert first is not None
    for name in ("hlf", "particles"):
        with (first.folder / name / "weights.pt").open("r+b") as file:
            file.write(b"x")
    runner._run_stage(Networks(hlf=1, particles=2), force=False)
    second = store.current()
    assert second is not None
    assert verify(run_folder) == [str(second.folder / "hlf" / "weights.pt")]
    taken_over = {each for each in first.files if each.path.startswith("hlf/")}
    assert len(taken_over) == 3
    assert taken_over <= set(second.files)
    runner._run_stage(Networks(hlf=1, particles=2), force=True)
    assert verify(run_folder) == []
