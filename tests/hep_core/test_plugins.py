"""Plugins that cannot be: each is refused with its file and line, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Loads each plugin, and computes its features of a bundled file; prints the errors.
PROGRAM = """
import json, sys
from features.kernels import build_features
from features.settings import FeatureSettings
from features.functions import FUNCTIONS
from features.columns import HIGH_LEVEL
from hep_core import plugins
from ingestion.files import find_input_files
from ingestion.selection import select_events
from ingestion.reader import read_events
from ingestion.settings import IngestSettings, SampleSettings
from models.networks.registry import networks_settings
from training.settings import TrainSettings
import features.columns

(info,) = find_input_files([SampleSettings(name="qcd", label=0, files=[sys.argv[1]])], IngestSettings(), print).infos
events = select_events(next(iter(read_events(info, IngestSettings(), start=0, stop=60))), info, IngestSettings()).table
before = build_features(events, FeatureSettings()).hlf
for path in sys.argv[2:]:
    try:
        plugins.load([path])
        now = build_features(events, FeatureSettings()).hlf
        assert (now[:, :before.shape[1]] == before).all()
        print(json.dumps(["no error", ""]))
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
    for feature in HIGH_LEVEL[before.shape[1]:]:
        HIGH_LEVEL.remove(feature)
        del FUNCTIONS[feature.name]
    features.columns._fill_tables()
"""
FEATURE = """
import numpy as np
from features.functions import high_level_feature
@high_level_feature(unit={unit!r}, meaning="x")
def {name}(events):
    return {value}
"""


def feature(value: str = "events.met", *, name: str = "own", unit: str = "GeV") -> str:
    return FEATURE.format(value=value, name=name, unit=unit)


def registered(callable_text: str, *definitions: str) -> str:
    """A plugin that registers something else than a plain function."""
    lines = [
        "from functools import partial",
        "from features.functions import high_level_feature",
        *definitions,
    ]
    return "\n".join([*lines, f'high_level_feature(unit="1", meaning="x")({callable_text})', ""])


def network_of(imports: str, *lines: str) -> str:
    """A plugin with a network of these lines."""
    body = "\n    ".join(lines)
    return (
        "from models.networks.network_settings import NetworkSettings, network\n"
        f"{imports}\n@network('own_network')\nclass Mine(NetworkSettings):\n    {body}\n"
    )


#: Source, expected error, and texts of its message, by the plugin's name.
PLUGINS = {
    "shadows_a_feature": (feature(name="met"), "PluginError", ("line 4", "'met'", "another name")),
    "shadows_a_network": (
        """from models.networks.network_settings import NetworkSettings, network
@network('hlf')
class Mine(NetworkSettings):
    inputs = ('hlf',)
""",
        "PluginError",
        ("line 2", "'hlf'"),
    ),
    "shadows_a_method": (
        """from typing import Literal
from training.algorithms.method import MethodSettings, Traits, algorithm
class S(MethodSettings):
    name: Literal['easgd']
@algorithm('easgd', S, Traits())
class A: ...
""",
        "PluginError",
        ("line 5", "'easgd'"),
    ),
    "shadows_a_topology": (
        "from training.topology import topology\n@topology('ring')\ndef ring(rank, size): return []\n",
        "PluginError",
        ("line 2", "'ring'"),
    ),
    "has_no_unit": (feature(unit=""), "PluginError", ("line 4", "'own'", "unit")),
    "imports_torch": ("import numpy\nimport torch\n", "PluginError", ("line 2", "torch")),
    "imports_a_network": (
        "from models.networks.classifier import Classifier\n",
        "PluginError",
        ("line 1", "torch"),
    ),
    "has_a_setting_without_default": (
        """from models.networks.network_settings import NetworkSettings, network
@network('mine')
class Mine(NetworkSettings):
    inputs = ('hlf',)
    width: int
""",
        "PluginError",
        ("line 2", "'mine'", "width"),
    ),
    "has_no_bins": (
        feature().replace('meaning="x"', 'meaning="x", bins=(0, 5, 1)'),
        "PluginError",
        ("line 4", "'own'", "bins"),
    ),
    "has_two_edges": (
        feature().replace('meaning="x"', 'meaning="x", bins=(0, 5)'),
        "PluginError",
        ("line 4", "'own'", "bins"),
    ),
    "has_infinite_bins": (
        feature().replace('meaning="x"', 'meaning="x", bins=(5, 0, np.inf)'),
        "PluginError",
        ("line 4", "'own'", "bins"),
    ),
    "needs_letters": (
        feature().replace('meaning="x"', 'meaning="x", needs="Vertex_size"'),
        "PluginError",
        ("line 4", "'own'", "needs=['Vertex_size']"),
    ),
    "has_a_negative_scale": (
        feature().replace('meaning="x"', 'meaning="x", log_above=-1'),
        "PluginError",
        ("line 4", "'own'", "log_above"),
    ),
    "takes_nothing": (
        feature().replace("own(events)", "own()"),
        "PluginError",
        ("line 4", "'own'", "one argument"),
    ),
    "takes_two": (
        feature().replace("own(events)", "own(events, jets)"),
        "PluginError",
        ("line 4", "'own'", "one argument"),
    ),
    "is_a_coroutine": (
        feature().replace("def own", "async def own"),
        "PluginError",
        ("line 4", "'own'", "async"),
    ),
    "is_named_like_a_weight": (
        feature(name="weight_of_jets"),
        "PluginError",
        ("line 4", "'weight_of_jets'", "ingest.weights"),
    ),
    "differs_in_capitals": (
        feature(name="MET"),
        "PluginError",
        ("line 4", "'met'", "small and capital"),
    ),
    "is_no_settings_of_a_network": (
        network_of("from pydantic import BaseModel as NetworkSettings", "width: int = 1"),
        "PluginError",
        ("line 3", "NetworkSettings"),
    ),
    "has_no_inputs": (network_of("", "width: int = 1"), "PluginError", ("line 3", "inputs")),
    "has_unknown_inputs": (
        network_of("", "inputs = ('particle',)", "def build(self, scalers, num_classes): ..."),
        "PluginError",
        ("line 3", "'particle'", "'particles'"),
    ),
    "has_a_text_as_inputs": (
        network_of("", "inputs = ('hlf')", "def build(self, scalers, num_classes): ..."),
        "PluginError",
        ("line 3", "inputs", "('hlf',)"),
    ),
    "builds_nothing": (network_of("", "inputs = ('hlf',)"), "PluginError", ("line 3", "build")),
    "ends_the_process": ("import sys\nsys.exit(7)\n", "PluginError", ("line 2", "SystemExit")),
    "is_no_python": ("x = (\n", "PluginError", ("line 1",)),
    "fails": ("\n\nraise OSError('broken')\n", "PluginError", ("line 3", "broken")),
    "gives_nan": (feature("events.met * np.nan"), "FeatureError", ("'own'", "not finite")),
    "gives_another_length": (feature("events.met[1:]"), "FeatureError", ("'own'", "shape")),
    "fails_at_work": (feature("events.mett"), "FeatureError", ("'own'", "line 6", "mett")),
    "depends_on_other_events": (
        feature("events.met - events.met.mean()"),
        "FeatureError",
        ("'own'", "other events"),
    ),
    "depends_on_the_order": (
        feature("np.arange(len(events.met))"),
        "FeatureError",
        ("'own'", "other events"),
    ),
    "is_random": (
        feature("np.random.default_rng().uniform(size=len(events.met))"),
        "FeatureError",
        ("'own'", "random numbers"),
    ),
    "is_masked": (
        feature("np.ma.masked_greater(events.met, 0)"),
        "FeatureError",
        ("'own'", "not finite", "entry"),
    ),
    "is_complex": (feature("events.met + 1j"), "FeatureError", ("'own'", "complex128")),
    "is_text": (feature("events.met.astype(str)"), "FeatureError", ("'own'", "numbers")),
    "is_text_in_objects": (
        feature("events.met.astype(str).astype(object)"),
        "FeatureError",
        ("'own'", "numbers", "str"),
    ),
    "is_bytes_in_objects": (
        feature("events.met.astype(bytes).astype(object)"),
        "FeatureError",
        ("'own'", "numbers", "bytes"),
    ),
    "is_text_of_pandas": (
        "import pandas\n" + feature("pandas.Series(events.met).astype(str)"),
        "FeatureError",
        ("'own'", "numbers", "str"),
    ),
    "has_numbers_of_pandas": (
        "import pandas\n" + feature("pandas.Series(events.met, dtype='Float64')"),
        "no error",
        (),
    ),
    "is_a_date": (
        feature("events.met.astype('datetime64[s]')"),
        "FeatureError",
        ("'own'", "datetime64"),
    ),
    "is_beyond_float32": (
        feature("np.where(events.met > 0, 1e300, 0)"),
        "FeatureError",
        ("'own'", "float32", "entry"),
    ),
    "changes_its_input": (
        feature("np.negative(events.met, out=events.met)")
        + feature("events.met - events.records().met", name="second").replace(
            "return", "assert (events.met >= 0).all(); return"
        ),
        "no error",
        (),
    ),
    "is_compiled_for_arrays": (
        feature()
        .replace("\ndef", "\n@numba.njit\ndef")
        .replace("import numpy as np", "import numba"),
        "FeatureError",
        ("'own'", "fails: TypingError"),
    ),
    "is_compiled_within": (
        feature("doubled(events.met)")
        + "import numba\n@numba.njit\ndef doubled(met):\n    return 2 * met\n",
        "no error",
        (),
    ),
    "is_partial": (
        registered("partial(own, power=2)", "def own(events, power): return events.met**power"),
        "no error",
        (),
    ),
    "fails_partially": (
        registered("partial(own, power=2)", "def own(events, power): return events.mett**power"),
        "FeatureError",
        ("'own'", "line 3", "mett"),
    ),
    "is_an_object": (
        registered("Own()", "class Own:", "    def __call__(self, events): return events.met"),
        "no error",
        (),
    ),
    "is_a_method": (
        registered("Own().own", "class Own:", "    def own(self, events): return events.met"),
        "no error",
        (),
    ),
    "is_a_lambda": (
        registered("lambda events: events.met"),
        "PluginError",
        ("line 3", "<lambda>", "`def`"),
    ),
    "is_built_in": (registered("len"), "PluginError", ("line 3", "len", "`def`")),
    "is_fine": (feature("events.records().met"), "no error", ()),
}


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Class and message of the error of each plugin; `no error` without one."""
    folder = tmp_path_factory.mktemp("plugins")
    paths = []
    for name, (text, *_) in PLUGINS.items():
        path = folder / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    command = [sys.executable, "-c", PROGRAM, ROOT / "samples" / "ttbar_13TeV_PU20_0.root", *paths]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    lines = [line for line in completed.stdout.splitlines() if line.startswith("[")]
    return dict(zip(PLUGINS, map(json.loads, lines), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", PLUGINS)
def test_an_impossible_plugin_is_refused_with_its_file_and_line(
    name: str, errors: dict[str, tuple[str, str]]
) -> None:
    _, expected_error, expected_texts = PLUGINS[name]

    error, message = errors[name]

    assert error == expected_error, message
    for text in expected_texts:
        assert text in message
    if expected_texts:
        assert f"{name}.py" in message


def test_a_missing_plugin_is_named() -> None:
    from hep_core.plugins import PluginError, load, loaded

    with pytest.raises(PluginError, match=r"no file /not/there\.py"):
        load(["/not/there.py"])
    with pytest.raises(PluginError, match="no module 'not_there'"):
        load(["not_there"])
    assert loaded() == []


@pytest.mark.parametrize("folder", ["day 10:45", 'a "b", [c]', "h\u00e9ros"])
def test_the_processes_of_a_command_find_a_plugin_in_any_folder(
    tmp_path: Path, folder: str
) -> None:
    """A started process gets the names of the plugins in a variable of its environment."""
    path = tmp_path / folder / "of_the_user.py"
    path.parent.mkdir()
    path.touch()
    child = "from hep_core import plugins; plugins.load_from_environment(); print(plugins.names())"
    parent = (
        "import subprocess, sys; from hep_core import plugins; plugins.load([sys.argv[1]]); "
        "sys.exit(subprocess.run([sys.executable, '-c', sys.argv[2]]).returncode)"
    )

    completed = subprocess.run(
        [sys.executable, "-c", parent, str(path), child],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.stderr == ""
    assert completed.stdout == "['of_the_user.py']\n"
