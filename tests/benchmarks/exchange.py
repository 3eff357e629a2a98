"""Benchmark: pairwise exchanges of shared vectors between two workers (`make bench`).

One number is one complete average of two vectors, begun by one worker and seen by both; both workers make them at the
same time, so that each waits for the other's now and then. `thread` is the time from beginning an average that goes on
beside the computation until it is done, with a main thread that only waits for it. Goal: 30 microseconds for the 2,013
parameters of the HLF network, protocol `locked`, at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import numpy as np

from training.launcher import find_mpirun
from training.transport import SharedVector, run_now
from training.transports.mpi import MpiTransport
from training.transports.self_test import self_test

#: Elements, and how many averages of them.
SIZES = {2_013: 10_000, 10_803: 10_000, 61_706: 3_000, 1_000_000: 200}
