"""The smallest config, written with changes, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config import load_config
from pipeline.configuration.yaml_text import write_yaml
from pipeline.errors import ConfigError

MINIMAL: dict[str, Any] = {
    "run_dir": "runs/x",
    "classes": ["QCD", "ttbar", "W+jets"],
    "samples": [
        {"name": "qcd", "label": 0, "files": ["a.root"]},
        {"name": "ttbar", "label": 1, "files": ["b.root"]},
        {"name": "wjets", "label": 2, "files": ["c.root"]},
    ],
}


def write_config(folder: Path, **changes: Any) -> str:
    path = folder / "config.yaml"
    path.write_text(write_yaml({**MINIMAL, **changes}))
    return str(path)


def config_mistakes(folder: Path, *overrides: str, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(write_config(folder, **changes), overrides)
    return str(caught.value)
