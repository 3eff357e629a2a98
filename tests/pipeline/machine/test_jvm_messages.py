"""What a JVM says of its own options is no line of ours."""

from __future__ import annotations

import subprocess
import sys

NOISE = "WARNING: Using incubator modules: jdk.incubator.vector"
#: A program that starts another one in the place of a JVM, which prints two lines.
PROGRAM = f"""
import subprocess, sys, time
from pipeline.machine.jvm_messages import stderr_for_jvm

noise = []
with stderr_for_jvm(noise.append) as stderr:
    lines = {NOISE!r} + chr(10) + "12:00:00 ERROR lost" + chr(10)
    subprocess.run([sys.executable, "-c", f"import sys; sys.stderr.write({{lines!r}})"], stderr=stderr)
while not noise:
    time.sleep(0.01)
time.sleep(0.1)
print(noise)
"""


def test_warnings_of_the_jvm_go_to_the_callback_and_errors_to_the_terminal() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )

    assert completed.stdout == f"{[NOISE]}\n"
    assert completed.stderr == "12:00:00 ERROR lost\n"
