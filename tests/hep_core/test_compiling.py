"""Where machine code is cached: beside the source, else in the home folder, else in a temporary one."""

from __future__ import annotations

import builtins
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hep_core import compiling
from hep_core.compiling import cache_folder

ROOT = Path(__file__).resolve().parents[2]


def unwritable(folder: Path) -> Path:
    """A folder that nobody can make: a file is in the way, which stops root too."""
    (folder / "file").write_text("")
    return folder / "file" / "below"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def result(package: Path, inner: str) -> tuple[int, int]:
    """Result of a kernel, and how often it is compiled, as in a new process.

    The kernel calls a function of another file, which returns the expression `inner`.
    """
    package.mkdir(exist_ok=True)
    (package / "inner.py").write_text(f"def inner(x):\n    return {inner}\n")
    (package / "outer.py").write_text("def outer(x):\n    return inner(x)\n")
    compiling._package_cache.cache_clear()
    # Without a name, numba would write all of `builtins` into its cache.
    namespace: dict[str, Any] = {"__name__": package.name}
    for name in ("inner", "outer"):
        file = package / f"{name}.py"
        exec(compile(file.read_text(), str(file), "exec"), namespace)  # noqa: S102 - our own code
        namespace[name] = compiling.compiled(namespace[name])
    outer = namespace["outer"]
    return outer(3), sum(outer.stats.cache_misses.values())


def test_the_cache_is_used_until_a_file_of_the_package_changes(
    tmp_path: Path,
) -> None:
    package = tmp_path / "kernels"
    assert result(package, "x + 1") == (4, 1)
    assert [path.name[:8] for path in (package / "__pycache__").iterdir()] == ["kernels-"]
    assert result(package, "x + 1") == (4, 0)
    assert result(package, "x + 2") == (5, 1)


def test_a_function_with_other_options_is_compiled_again(tmp_path: Path) -> None:
    file = tmp_path / "divided.py"
    file.write_text("def divided(x, y):\n    return x / y\n")
    for options in ({"error_model": "numpy"}, {}):
        actual: dict[str, Any] = {"__name__": "divided"}
        exec(compile(file.read_text(), str(file), "exec"), actual)  # noqa: S102 - our own code
        kernel = compiling.compiled(actual["divided"], **options)
        if options:
            assert kernel(1.0, 0.0) == float("inf")
        else:
            with pytest.raises(ZeroDivisionError):
                kernel(1.0, 0.0)


def test_capsules_in_builtins_stop_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtins, "__pybind11_internals", dt.datetime_CAPI, raising=False)
    assert result(tmp_path / "kernels", "x + 1") == (4, 1)
    assert result(tmp_path / "kernels", "x + 1") == (4, 0)


def test_the_cache_is_in_the_first_writable_private_folder(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    places = [unwritable(tmp_path), tmp_path / "shared", tmp_path / "home"]
    assert cache_folder("kernels-1", places) == tmp_path / "home" / "kernels-1"


def test_without_a_writable_folder_the_cache_is_a_stable_temporary_one(
    tmp_path: Path, temporary: Path
) -> None:
    places = [unwritable(tmp_path)]
    actual = cache_folder("kernels-1", places)
    assert actual.is_relative_to(temporary)
    assert actual.parent.stat().st_mode & 0o077 == 0
    assert cache_folder("kernels-1", places) == actual


def test_machine_code_that_others_may_write_is_not_run(tmp_path: Path, temporary: Path) -> None:
    places = [unwritable(tmp_path)]
    shared = cache_folder("kernels-1", places).parent
    shared.chmod(0o777)
    actual = cache_folder("kernels-1", places)
    assert actual.parent != shared
    assert actual.is_relative_to(temporary)


KERNEL = """
from hep_core.compiling import compiled

@compiled
def twice(x):
    return 2 * x
"""


def shipped(folder: Path, *, source: str = KERNEL) -> Path:
    """An archive with a kernel, as an application ships it."""
    archive = folder / "shipped.zip"
    folder.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("shipped_kernels/__init__.py", "")
        file.writestr("shipped_kernels/kernel.py", source)
    return archive


def run_shipped(archive: Path, home: Path) -> tuple[int, int]:
    """Result of the kernel in another process, and how often it was compiled."""
    program = "from shipped_kernels.kernel import twice; r = twice(3); print(r, sum(twice.stats.cache_misses.values()))"
    environment = {
        **os.environ,
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(archive), str(ROOT)]),
    }
    out = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    result, compiled = out.stdout.split()
    return int(result), int(compiled)


@pytest.mark.slow
def test_kernels_of_an_archive_are_compiled_once_whatever_its_path(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert run_shipped(shipped(tmp_path / "first"), home) == (6, 1)
    assert run_shipped(shipped(tmp_path / "second"), home) == (6, 0)
    assert run_shipped(shipped(tmp_path / "edited", source=KERNEL.replace("2 *", "3 *")), home) == (
        9,
        1,
    )


#: Not compiled: then NumPy checks all indices, in a tenth of the time that it takes to compile the checks.
CHECKED = """
import sys
import numpy as np
from hep_core.compiling import compiled
from features.kernels import build_features
from features.matrices import particle_features, particle_matrices, particles_from_core
from features.unmixed_files import transpose_runs
from features.settings import FeatureSettings
from ingestion.files import expand, inventory
from hep_simulation.calorimeter import ECAL, HCAL, Hits, MeasuredTracks, measure
from hep_simulation.particles import StableParticles
from hep_simulation.propagation import propagate
from hep_simulation.puppi import Flowing, puppi_weights
from ingestion.selection import select_events
from ingestion.reader import read_events
from ingestion.settings import IngestSettings, SampleSettings

@compiled
def beyond(values):
    return values[values.size]

try:
    beyond(np.zeros(3))
except IndexError:
    print("checked")
settings = IngestSettings(min_track_pt=0.3)
(info,) = inventory(expand([SampleSettings(name="qcd", label=0, files=sys.argv[1:2])]), settings).infos
(raw,) = read_events(info, settings, start=0, stop=20)
events = select_events(raw, info, settings).table
for options in ({}, {"ordering": "decreasing"}, {"convention": "sparkdltrigger", "ordering": "file"}):
    block = build_features(events, FeatureSettings(**options))
    particles = particles_from_core(block.core.T)
    particle_matrices(block.particle_offsets, particles)
    particle_features(particles)
transpose_runs(block.core, np.array([0, 5]), np.array([5, 3]), np.zeros((11, 8), np.float32), np.array([0, 5]))
build_features(events.slice(0, 0), FeatureSettings())
# The detector: three events, the middle one empty, with particles up to the ends of the calorimeters.
rng = np.random.default_rng(1)
event = np.repeat([0, 2], 40)
eta = np.append(rng.uniform(-6, 6, 78), [-4.999, 4.999])
phi = np.append(rng.uniform(-np.pi, np.pi, 78), [-np.pi, np.pi])
pt, pid = rng.exponential(5, 80), rng.choice([11, 13, 22, 130, -211], 80)
momenta = pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta), pt * np.cosh(eta)
none = np.zeros(0)
particles = StableParticles(np.array([0, 40, 40, 80]), pid, *momenta, *np.zeros((3, 80)))
arrival = propagate(particles)
hits = Hits(event, arrival.eta, arrival.phi, particles.energy)
tracks = MeasuredTracks(Hits(*(each[:20] for each in hits)), np.full(20, 0.01))
flows = [measure(each, hits, tracks, rng) for each in (ECAL, HCAL)]
candidates = Flowing(event, pt, eta, phi, np.isin(pid, (11, 13, -211)), rng.random(80) < 0.5)
weights = puppi_weights(candidates, np.array([20, 20, 20]))
puppi_weights(Flowing(np.zeros(0, int), none, none, none, none > 0, none > 0), np.array([20]))
print(len(flows[0].neutral.energy) > 5 and 0 < weights.mean() < 1)
print(len(block.selected) > 5)
"""


@pytest.mark.slow
def test_no_kernel_reads_or_writes_beyond_an_array() -> None:
    path = ROOT / "samples" / "ttbar_13TeV_PU20_0.root"
    completed = subprocess.run(
        [sys.executable, "-c", CHECKED, str(path)],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert completed.stdout.split() == ["checked", "True", "True"], completed.stderr


def test_machine_code_is_compiled_once_for_all_processes() -> None:
    """A set of options has another order in each process, and the name of the cache had that order."""
    flags = {"reassoc", "contract", "arcp", "nsz", "nnan"}
    compiling.compiled(lambda x: x, fastmath=flags)
    assert json.loads(compiling.KernelCache.options) == {"fastmath": sorted(flags)}
