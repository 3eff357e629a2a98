"""Starts Pythia 8 with the settings of a process, and refuses settings that it cannot use."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from hep_core.input_errors import InputFileError

_PACKAGES: Final = ("pythia8mc", "fastjet")
#: The variable that names the folder of Pythia's data, and this folder below a prefix.
_DATA_VARIABLE: Final = "PYTHIA8DATA"
_XML: Final = Path("share", "Pythia8", "xmldoc")
_ENERGY: Final = re.compile(r"\s*Beams:eCM\s*=?\s*([\d.]+(?:e[+-]?\d+)?)", re.IGNORECASE)


class GenerationError(InputFileError):
    """The simulation cannot run with these settings, or on this machine."""

    may_be_skipped = False


def require_packages() -> None:
    """Check that the extra `simulate` is installed, before tasks fail for it."""
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def start_pythia(lines: Sequence[str], hooks: Any) -> Any:
    """Start Pythia with some settings, one a line, and `hooks`, an early filter or None.

    It sets the variable of Pythia's data in the environment, unless it is set.

    Raises:
        GenerationError: Pythia refuses the settings.
    """
    import pythia8mc  # noqa: PLC0415 - the extra `simulate`

    os.environ.setdefault(_DATA_VARIABLE, str(_data_folder(Path(pythia8mc.__file__))))
    pythia = pythia8mc.Pythia(os.environ[_DATA_VARIABLE], False)
    if hooks is not None:
        pythia.setUserHooksPtr(hooks)
    for line in lines:
        if not pythia.readString(line):
            raise GenerationError(
                f"Pythia does not know the setting '{line}'. Correct it under simulate.processes: "
                "in the config; https://pythia.org/latest-manual lists all settings."
            )
    if not pythia.init():
        raise GenerationError(
            f"Pythia cannot start with the settings {'; '.join(lines)}. Its own message above "
            "gives the reason."
        )
    return pythia


def _data_folder(module: Path) -> Path:
    """Folder of Pythia's particle data; `module` is the file of the package.

    The wheel installs the data beside the package or below the environment.
    """
    for prefix in (Path(sys.prefix), *module.parents):
        if (prefix / _XML / "Index.xml").is_file():
            return prefix / _XML
    raise GenerationError(
        f"pythia8mc is installed without its data ({_XML}). Install it again: "
        ".venv/bin/pip install --force-reinstall --no-deps pythia8mc"
    )


def check_energy(lines: Iterable[str], energy_tev: float) -> None:
    """Refuse settings with another energy than that of the config, which pile-up and plots have.

    `lines` are settings of Pythia, in which `Beams:eCM` is in GeV.
    """
    for line in lines:
        match = _ENERGY.match(line)
        if match and not math.isclose(float(match[1]), 1000 * energy_tev, rel_tol=1e-6):
            raise GenerationError(
                f"a process has collisions of {float(match[1]):g} GeV, simulate.energy_tev is "
                f"{energy_tev:g}. Correct one of the two."
            )


def check_weights(weights: Iterable[float]) -> None:
    """Refuse events to which Pythia gives another weight than 1.

    The tally, the early filter and Event.Weight count each event as one.
    """
    for weight in weights:
        if weight != 1:
            raise GenerationError(
                f"Pythia gives an event the weight {weight:g}; only events of weight 1 are "
                "simulated. Remove settings that bias the selection of events "
                "(PhaseSpace:bias2Selection) from the process, and make one process for each range "
                "of pTHat instead. Weighted events of a file (Beams:LHEF) cannot be used."
            )
