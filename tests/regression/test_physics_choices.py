"""No order and no default decides about the physics: the signal, the classes, the labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from minimal_configs import config_mistakes, write_config
from rich.console import Console

from pipeline.commands.validate import validate
from pipeline.config import load_config
from pipeline.errors import ConfigError
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner, State
from pipeline.runs.code_meaning import ROOT


def write_neutral_config(folder: Path, classes: list[str], **changes: Any) -> str:
    """A config with a sample of a neutral name for each class."""
    files = sorted((ROOT / "samples").glob("*.root"))
    samples = [
        {"name": f"sample{label}", "label": label, "files": [str(files[label])]}
        for label in range(len(classes))
    ]
    run_dir = str(folder / "run")
    return write_config(folder, run_dir=run_dir, classes=classes, samples=samples, **changes)


@pytest.mark.parametrize(
    ("classes", "signal"),
    [
        (["signal", "background"], "signal"),
        (["background", "signal"], "signal"),
        (["B", "S"], "S"),
        (["QCD", "ttbar", "W+jets"], "ttbar"),
        (["W+jets", "ttbar", "QCD"], "ttbar"),
        # Each of these could be it.
        (["top", "rest"], None),
        (["signal", "sig"], None),
        (["ttbar", "signal"], None),
        (["assignal", "background"], None),
    ],
)
def test_the_signal_follows_from_the_names_of_classes_and_never_from_their_order(
    tmp_path: Path, classes: list[str], signal: str | None
) -> None:
    config = load_config(write_neutral_config(tmp_path, classes))

    if signal is not None:
        assert config.signals == [signal]
        return

    message = f"evaluate.signal is not set.*one or some of: {', '.join(classes)}"
    console = Console(quiet=True)
    with pytest.raises(ConfigError, match=message):
        list(validate(config, console))
    # The error comes before any work.
    runner = Runner(RunFolder(config, console))
    with pytest.raises(ConfigError, match=r"evaluate\.signal is not set"):
        runner.run(["ingest", "features", "train", "evaluate"])
    states = {planned_stage.stage.name: planned_stage.state for planned_stage in runner.plan()}
    assert states["train"] is State.MISSING
    assert states["evaluate"] is State.FAILS
    assert not (config.run_dir / "ingest").exists()

    last_class = classes[-1]
    config_path = write_neutral_config(tmp_path, classes, evaluate={"signal": last_class})
    assert load_config(config_path).signals == [last_class]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ["W+", "W-", "Z"]}, "'W+' is blank, given twice"),
        (
            {"classes": ["QCD", "ttbar", "All backgrounds"]},
            "'All backgrounds' is blank, given twice, or taken",
        ),
        # The demo's samples with another order of classes.
        ({"classes": ["ttbar", "QCD", "W+jets"]}, "'qcd' has the label of class 'ttbar', but"),
        (
            {"classes": {"QCD": 0, "ttbar": 1, "W+jets": 2}},
            "'classes': Input should be a valid list",
        ),
        ({"evaluate": {"signal": "TTBAR"}}, "there is no class 'TTBAR'"),
    ],
)
def test_ambiguous_classes_and_signals_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    assert message in config_mistakes(tmp_path, **changes)


@pytest.mark.parametrize("label", [-1, 3, "1", True, None])
def test_a_label_is_the_number_of_a_class(tmp_path: Path, label: object) -> None:
    samples = [
        {"name": "a", "label": 0, "files": ["x"]},
        {"name": "b", "label": label, "files": ["x"]},
        {"name": "c", "label": 2, "files": ["x"]},
    ]

    mistakes = config_mistakes(tmp_path, samples=samples)

    assert "samples" in mistakes


def test_samples_without_classes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("run_dir: x\nsamples: [{name: s, label: 0, files: [a]}]\n")

    with pytest.raises(ConfigError, match="'classes' is missing"):
        load_config(str(path))
