"""Entry point of `hep-pipeline`: its name is unique, those of our packages are not."""

import os
import sys


def main() -> None:
    """Run the command line of the packages beside this file, not of others of these names in PYTHONPATH."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - loads nothing
    from pipeline.__main__ import main as run  # noqa: PLC0415 - the path is right only now

    run()


if __name__ == "__main__":
    main()
