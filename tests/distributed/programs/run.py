"""One rank: `run.py MODULE:FUNCTION ARGUMENTS FOLDER`; what the function returns goes to FOLDER/rank-<n>.json."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path

from training.transports.loading import load_mpi


def main() -> None:
    """Run the function; an error ends all ranks."""
    program, arguments, folder = sys.argv[1:]
    module, function = program.split(":")
    world = load_mpi().COMM_WORLD

    def finish(result: object) -> None:
        (Path(folder) / f"rank-{world.rank}.json").write_text(json.dumps(result), encoding="utf-8")

    try:
        chosen = getattr(importlib.import_module(module), function)
        given = json.loads(arguments)
        # Those that do not come back to here take `finish`.
        finish(chosen(**given)) if not module.startswith("losses") else chosen(finish, **given)
    except BaseException:  # noqa: BLE001 - whatever it is, the other ranks must not wait for this one forever
        traceback.print_exc()
        sys.stderr.flush()
        world.Abort(1)


if __name__ == "__main__":
    main()
