"""One rank: `run.py MODULE:FUNCTION ARGUMENTS FOLDER`.

What the function returns goes to FOLDER/rank-<n>.json.

`run.py several '{"programs": [[MODULE:FUNCTION, ARGUMENTS], ...]}' FOLDER` runs one after the
other.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from training.transports.basics import load_mpi


def function_of(program: str) -> Any:
    """The function that `module:function` names."""
    module, function = program.split(":")
    return getattr(importlib.import_module(module), function)


def several(programs: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """The results of programs that run one after the other; an error names its program."""
    results = []
    for program, arguments in programs:
        try:
            results.append(function_of(program)(**arguments))
        except BaseException as error:
            error.add_note(f"in {program} with {arguments}")
            raise
    return results


def main() -> None:
    """Run the function; an error ends all ranks."""
    program, arguments, folder = sys.argv[1:]
    world = load_mpi().COMM_WORLD

    try:
        document = json.loads(arguments)
        result = several(**document) if program == "several" else function_of(program)(**document)
        (Path(folder) / f"rank-{world.rank}.json").write_text(json.dumps(result), encoding="utf-8")
    except BaseException:  # noqa: BLE001 - whatever it is, no rank may wait forever
        traceback.print_exc()
        sys.stderr.flush()
        world.Abort(1)


if __name__ == "__main__":
    main()
