"""The program of an agent; `training.agents.local` starts it.

Its arguments are the descriptor that holds its folder, and the file of its start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from training.agents.lifelines import Lifeline
from training.agents.local import read_start
from training.agents.messages import serve


def main(argv: list[str]) -> int:
    """Run an agent to its end: that of its driver, or an error."""
    held, path = int(argv[1]), Path(argv[2])
    home, start, joint = read_start(path)

    def end() -> None:
        home.leave(held)
        os._exit(0)

    try:
        lifeline = Lifeline(home.driver, home.token, start.agent, on_end=end)
    except OSError:
        # The driver is gone already.
        home.leave(held)
        return 1
    try:
        # The driver hears of libraries that are missing here.
        from training.agents.agent import make_agent  # noqa: PLC0415
        from training.launching.rank import RunSpec, without_denormals  # noqa: PLC0415

        agent = make_agent(RunSpec.load(Path(start.spec)), start, joint)
        serve(home.file(start.agent, "sock"), home.token.encode(), agent.answer)
        with without_denormals():
            # No two agents of a partition read in the same order.
            agent.run(first_pass=(start.agent.number << 16) + start.epoch, on_ready=lifeline.say_ready)
    except Exception as error:  # noqa: BLE001 - the driver raises it
        lifeline.say_error(error)
        home.leave(held)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
