"""Comments and texts of errors change no result; other code may, whatever its names are."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hep_core import plugins
from pipeline.config import load_config
from pipeline.runner import STAGES
from pipeline.runs import code_meaning
from pipeline.runs.code_meaning import REGISTRIES, code_digests
from pipeline.runs.own_folders import MARKER
from pipeline.stages.base import Stage
from pipeline.stages.table import STAGE_OF

MODULE = '''"""A module."""

from features.b import double


def area(x: float) -> float:
    """Square."""
    if x < 0:
        raise ValueError(f"{x} is negative")
    return double(x) * 0.5  # half of it
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(code_meaning, "ROOT", tmp_path)
    code_meaning._read_module.cache_clear()
    code_meaning._loaded_plugins.clear()
    folder = tmp_path / "features"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text(MODULE)
    (folder / "b.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "c.py").write_text("unrelated = 1\n")
    return folder


def digests(entry: str = "features.a") -> dict[str, str]:
    """Digests of the modules that an entry point reaches, as they are now."""
    code_meaning._read_module.cache_clear()
    code_meaning._loaded_plugins.clear()
    return code_digests([entry])


def changed_modules(old: dict[str, str], entry: str = "features.a") -> set[str]:
    """The modules whose digests are new."""
    return {name for name, digest in digests(entry).items() if digest != old.get(name)}


TYPED = """
from features.b import double


class Settings(BaseModel):
    cone: float = 0.3


def area(x, *rest, scale=2):
    return double(x) * scale


@dispatched
def cut(x: int):
    return x > 1
"""


def change_module(package: Path, source: str, old: str, new: str) -> set[str]:
    """Replace a text of the module `a` with this source; returns the changed modules."""
    assert old in source
    (package / "a.py").write_text(source)
    old_digests = digests()
    (package / "a.py").write_text(source.replace(old, new))
    return changed_modules(old_digests)


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (MODULE, '"""Square."""', '"""The square of a number, in words."""'),
        (MODULE, "  # half of it", "  # the half"),
        (MODULE, "is negative", "must not be negative"),
        (MODULE, '"""A module."""\n', '"""Another module."""\n\n\n'),
        (
            TYPED,
            "area(x, *rest, scale=2):",
            "area(x: float, *rest: int, scale: float = 2) -> float:",
        ),
        (
            TYPED,
            "\n\nclass",
            "\nif TYPE_CHECKING:\n    from features.c import unrelated\n\nclass",
        ),
    ],
)
def test_comments_messages_and_types_of_functions_do_not_count(
    package: Path, source: str, old: str, new: str
) -> None:
    assert change_module(package, source, old, new) == set()


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (MODULE, "0.5", "0.4"),
        (MODULE, "x < 0", "x <= 0"),
        (MODULE, "raise ValueError", "raise TypeError"),
        (MODULE, "double(x) * 0.5", "double(-x) * 0.5"),
        (MODULE, "def area(x: float)", "@staticmethod\ndef area(x: float)"),
        (TYPED, "cone: float", "cone: int"),
        (TYPED, "scale=2", "scale=3"),
        (TYPED, "import double\n\n\nclass", "import triple as double\n\n\nclass"),
        # A decorator may choose by the types.
        (TYPED, "cut(x: int", "cut(x: float"),
    ],
)
def test_code_counts(package: Path, source: str, old: str, new: str) -> None:
    assert change_module(package, source, old, new) == {"features.a"}


@pytest.mark.parametrize(
    "statement", ["note(cuts)", "self.bar(cuts)", "cuts = Check(print, 'pt', cuts)"]
)
def test_a_call_counts_whatever_its_name(package: Path, statement: str) -> None:
    source = (
        "from features.b import note\n\n\ndef select(cuts):\n    pass\n    None\n    return cuts\n"
    )

    assert change_module(package, source, "None", statement) == {"features.a"}


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        (MODULE, {"features.b"}),
        ("from features.errors import limit\n", {"features.errors"}),
        ("from .b import double\nfrom . import c\n", {"features.b", "features.c"}),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from features.c import unrelated\n",
            set(),
        ),
        ("def f():\n    from features.c import unrelated\n    return unrelated\n", {"features.c"}),
    ],
)
def test_imported_modules_count_whatever_their_names(
    package: Path, source: str, imported: set[str]
) -> None:
    (package / "errors.py").write_text("limit = 1\n")
    (package / "a.py").write_text(source)
    old_digests = digests()
    assert old_digests.keys() == {"features", "features.a", *imported}

    for name in imported:
        (package.parent / f"{name.replace('.', '/')}.py").write_text("limit = 2\n")
    assert changed_modules(old_digests) == imported

    # An import also runs the packages around a module.
    (package / "__init__.py").write_text("import features.d\n")
    (package / "d.py").write_text("")
    assert digests().keys() == {*old_digests, "features.d"}


PLUGIN = "my_package.parts.trigger"


@pytest.fixture
def installed_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an installed package whose module `trigger` is a plugin."""
    folder = tmp_path / "my_package"
    texts = {
        "__init__.py": "",
        "parts/__init__.py": "",
        "parts/trigger.py": (
            "from my_package import helper\ntable = 'tables', 'efficiency.csv', 'shared.json'\n"
        ),
        "helper.py": "cut = 30  # GeV\n",
        "late.py": "scale = 1\n",
        "parts/tables/efficiency.csv": "1,2\n",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setenv(plugins.VARIABLE, "")
    plugins.load([PLUGIN])
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("file", "text", "changed"),
    [
        ("helper.py", "cut = 31\n", {"my_package.helper"}),
        ("helper.py", "cut = 30  # in GeV\n", set()),
        # It may be imported by its name while an event is computed.
        ("late.py", "scale = 2\n", {"my_package.late"}),
        ("parts/tables/efficiency.csv", "1,3\n", {PLUGIN}),
        ("parts/new.py", "x = 1\n", {"my_package.parts.new"}),
        # In the package, as `importlib.resources` finds it.
        ("shared.json", "[2]", {PLUGIN}),
        # Files of a person or of a run are no part of the plugin.
        (".helper.py.swp", "x", set()),
        ("parts/notes.ipynb", "x", set()),
        ("run/pipeline.log", "x", set()),
        ("run/export/0001-01234567/hls/build.py", "x", set()),
        ("helper.py~", "x", set()),
    ],
)
def test_the_whole_package_of_an_installed_plugin_counts(
    installed_plugin: Path, file: str, text: str, changed: set[str]
) -> None:
    version = installed_plugin / "run" / "export" / "0001-01234567"
    (version / "hls").mkdir(parents=True)
    (version / MARKER).touch()
    old_digests = digests(PLUGIN)

    (installed_plugin / file).write_text(text)

    assert changed_modules(old_digests, PLUGIN) == changed


def test_a_module_that_a_plugin_imports_is_an_entry_point(installed_plugin: Path) -> None:
    """A feature that is declared there names its module."""
    old_digests = digests("my_package.helper")

    (installed_plugin / "helper.py").write_text("cut = 31\n")

    assert changed_modules(old_digests, "my_package.helper") == {"my_package.helper"}


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("table.csv", {"plugin_one_file"}),
        ("tables/weights.npy", {"plugin_one_file"}),
        ("runs/demo/metrics.json", set()),
    ],
)
def test_a_plugin_of_one_file_counts_with_the_files_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, changed: set[str]
) -> None:
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setenv(plugins.VARIABLE, "")
    plugin = tmp_path / "one_file.py"
    plugin.write_text(
        "files = __file__, 'table.csv', 'tables', 'weights.npy', 'metrics.json'\nname = __name__\n"
    )
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("1")
    plugins.load([str(plugin)])
    try:
        old_digests = digests("plugin_one_file")
        (tmp_path / file).write_text("2")

        assert changed_modules(old_digests, "plugin_one_file") == changed
    finally:
        del sys.modules["plugin_one_file"]


def test_entry_points_and_registries_exist() -> None:
    with pytest.raises(FileNotFoundError, match=r"features\.no_such_module"):
        code_digests(["features.no_such_module"])
    assert all(importlib.util.find_spec(name) for name in REGISTRIES)


@pytest.mark.parametrize(
    ("name", "reads"),
    [("tables/of/cuts.csv", "files(__package__) / kind"), ("cuts.csv", "open('cuts.csv')")],
)
def test_a_table_counts_if_a_module_knows_its_location(
    package: Path, name: str, reads: str
) -> None:
    (package / "a.py").write_text(f"x = {reads}\n")
    table = package / name
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text("30")
    old_digests = digests()

    table.write_text("20")

    assert changed_modules(old_digests) == {"features.a"}


@pytest.mark.parametrize("name", ["report.html", "report.css"])
def test_templates_count_with_the_page_that_loads_them_and_with_nothing_else(
    package: Path, name: str
) -> None:
    folder = package.parent / "pipeline" / "reporting"
    folder.mkdir(parents=True)
    (folder / "page.py").write_text("template('report.html')\n")
    (folder / "report.html").write_text("")
    (folder / "cutflow.py").write_text("x = 1\n")
    (folder / name).write_text("one")
    page, cutflow = digests("pipeline.reporting.page"), digests("pipeline.reporting.cutflow")

    (folder / name).write_text("two")

    assert digests("pipeline.reporting.page") != page
    assert digests("pipeline.reporting.cutflow") == cutflow


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_the_shell_counts_in_no_stage(stage: Stage) -> None:
    config = load_config("demo", [])
    entry_points = [*stage.entry_points(config)]
    for part in stage.parts(config).values():
        entry_points += part.entry_points
    allowed = (
        "pipeline.stages.",
        "pipeline.reporting.",
        "pipeline.runs.trained_models",
        "pipeline.runs.best_settings",
        "pipeline.configuration.simulate_section",
    )

    names = code_digests(entry_points)

    for name in names:
        if name.count(".") > 1 and name.startswith("pipeline."):
            assert name.startswith(allowed)


@pytest.mark.parametrize(
    ("entries", "needed", "unneeded"),
    [
        # Only `evaluate-files` reads exported models.
        (("evaluate",), {"models.saved_model"}, ("models.export",)),
        (
            ("ingest",),
            {"ingestion.reader", "ingestion.tally", "pipeline.stages.base"},
            ("features.", "models.", "training.", "pipeline.reporting", "pipeline.runs"),
        ),
        (
            ("training.launching.rank_process", "training.workloads.hep", "models.networks.hlf"),
            {"training.workloads.hep", "training.workloads.draws", "training.loop.worker_state"},
            ("hep_studies.workloads.images", "hep_studies.networks.lenet5"),
        ),
        # With other code copies are unknown, so the schema of events must not count here.
        (("ingestion.copies",), {"ingestion.copies"}, ("ingestion.schema",)),
    ],
)
def test_code_that_a_result_does_not_need_does_not_count(
    entries: tuple[str, ...], needed: set[str], unneeded: tuple[str, ...]
) -> None:
    """An entry is a stage or a module."""
    config = load_config("demo", [])
    entry_points = list(entries)
    for stage in STAGES:
        if stage.name in entries:
            entry_points = [*stage.entry_points(config)]

    names = code_digests(entry_points)

    assert needed <= names.keys()
    assert [name for name in names if name.startswith(unneeded)] == []


def test_grid_search_and_slots_of_spark_count_only_where_they_are_used() -> None:
    config = load_config("demo", ["model.names=[hlf, particles]", "model.hlf.from_gridsearch=true"])
    parts = STAGE_OF["train"].parts(config)

    hlf = set(code_digests(parts["hlf"].entry_points))
    particles = set(code_digests(parts["particles"].entry_points))

    grid_search = {"training.gridsearch.settings", "pipeline.runs.best_settings"}
    spark_slots = {"training.launching.spark_job", "training.launching.spark_agent"}
    assert grid_search <= hlf
    assert not grid_search & particles
    assert not spark_slots & (hlf | particles)
