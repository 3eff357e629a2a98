"""`python -m pipeline` and `hep-pipeline`."""

import os
import sys

# A `features.py` or `signal.py` in the current folder, or in PYTHONPATH, must not take the place of
# what we import.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - loads nothing
try:
    _FOREIGN = {
        os.path.abspath(folder)  # noqa: PTH100
        for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    }
except FileNotFoundError:
    sys.exit("error: the current folder was removed; change to another one.")
sys.path[:] = [
    _ROOT,
    *(folder for folder in sys.path[0 if sys.flags.safe_path else 1 :] if folder not in _FOREIGN),
]

import signal  # noqa: E402

from hep_core.environment import enter_clean_environment  # noqa: E402
from hep_core.scarce_memory import return_freed_memory  # noqa: E402


def _end_at_once(signal_number: int, frame: object) -> None:  # noqa: ARG001 - the signature of signal handlers
    """End at an interrupt during the imports, before any work has begun."""
    os.write(2, b"\ninterrupted\n")
    os._exit(130)


def main() -> None:
    """Run the command line in an environment that changes no result."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, _end_at_once)
    enter_clean_environment()
    return_freed_memory()
    if sys.path.count(_ROOT) > 1:
        # Installed packages stand behind the standard library.
        del sys.path[0]
    from pipeline.cli import main as run  # noqa: PLC0415 - with the environment of `enter_clean_environment`

    run()


if __name__ == "__main__":
    main()
