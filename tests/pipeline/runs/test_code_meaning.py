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
    folder = tmp_path / "features"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text(MODULE)
    (folder / "b.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "c.py").write_text("unrelated = 1\n")
    return folder


def digests() -> dict[str, str]:
    code_meaning._read_module.cache_clear()
    return code_digests(["features.a"])


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


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ('"""Square."""', '"""The square of a number, in words."""', False),
        ("  # half of it", "  # the half", False),
        ("is negative", "must not be negative", False),
        ('"""A module."""\n', '"""Another module."""\n\n\n', False),
        ("0.5", "0.4", True),
        ("x < 0", "x <= 0", True),
        ("raise ValueError", "raise TypeError", True),
        ("double(x) * 0.5", "double(-x) * 0.5", True),
        ("def area(x: float)", "@staticmethod\ndef area(x: float)", True),
        # Types of functions ran trainings again.
        (
            "area(x, *rest, scale=2):",
            "area(x: float, *rest: int, scale: float = 2) -> float:",
            False,
        ),
        ("\n\nclass", "\nif TYPE_CHECKING:\n    from features.c import unrelated\n\nclass", False),
        ("cone: float", "cone: int", True),
        ("scale=2", "scale=3", True),
        ("import double\n\n\nclass", "import triple as double\n\n\nclass", True),
        # A decorator may choose by the types.
        ("cut(x: int", "cut(x: float", True),
    ],
)
def test_meaning_counts_and_words_and_types_of_functions_do_not(
    package: Path, old: str, new: str, *, counts: bool
) -> None:
    (source,) = (source_text for source_text in (MODULE, TYPED) if old in source_text)
    (package / "a.py").write_text(source)
    digests_before = digests()
    (package / "a.py").write_text(source.replace(old, new))
    changed = {name for name, digest in digests().items() if digest != digests_before[name]}
    assert changed == ({"features.a"} if counts else set())


@pytest.mark.parametrize(
    "statement", ["note(cuts)", "self.bar(cuts)", "cuts = Check(print, 'pt', cuts)"]
)
def test_a_call_counts_whatever_its_name(package: Path, statement: str) -> None:
    """Freshness ignored statements by the name of what they call."""
    source = (
        "from features.b import note\n\n\ndef select(cuts):\n    pass\n    {}\n    return cuts\n"
    )
    (package / "a.py").write_text(source.format("None"))
    digests_before = digests()
    (package / "a.py").write_text(source.format(statement))
    assert digests() != digests_before


@pytest.mark.parametrize(
    ("source", "followed"),
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
def test_what_is_imported_is_followed_whatever_its_name_is_and_counts(
    package: Path, source: str, followed: set[str]
) -> None:
    (package / "errors.py").write_text("limit = 1\n")
    (package / "a.py").write_text(source)
    digests_before = digests()
    assert set(digests_before) == {"features", "features.a", *followed}
    for name in followed:
        (package.parent / f"{name.replace('.', '/')}.py").write_text("limit = 2\n")
    assert {
        name for name, digest in digests().items() if digest != digests_before[name]
    } == followed
    # An import also runs the packages around a module.
    (package / "__init__.py").write_text("import features.d\n")
    (package / "d.py").write_text("")
    assert set(digests()) == {*digests_before, "features.d"}


@pytest.fixture
def installed_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an installed package whose module `trigger` is a plugin."""
    folder = tmp_path / "my_package"
    (folder / "parts" / "tables").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "trigger.py").write_text(
        "from my_package import helper\ntable = 'tables', 'efficiency.csv', 'shared.json'\n"
    )
    (folder / "helper.py").write_text("cut = 30  # GeV\n")
    (folder / "late.py").write_text("scale = 1\n")
    (folder / "parts" / "tables" / "efficiency.csv").write_text("1,2\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setenv(plugins.VARIABLE, "")
    plugins.load(["my_package.parts.trigger"])
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


def changed_in_plugin(
    state_before: dict[str, str], entry: str = "my_package.parts.trigger"
) -> set[str]:
    code_meaning._read_module.cache_clear()
    return {
        name for name, digest in code_digests([entry]).items() if digest != state_before.get(name)
    }


@pytest.mark.parametrize(
    ("file", "text", "counted"),
    [
        ("helper.py", "cut = 31\n", {"my_package.helper"}),
        ("helper.py", "cut = 30  # in GeV\n", set()),
        # It may be imported by its name while an event is computed.
        ("late.py", "scale = 2\n", {"my_package.late"}),
        ("parts/tables/efficiency.csv", "1,3\n", {"my_package.parts.trigger"}),
        ("parts/new.py", "x = 1\n", {"my_package.parts.new"}),
        # In the package, as `importlib.resources` finds it.
        ("shared.json", "[2]", {"my_package.parts.trigger"}),
        (".helper.py.swp", "x", set()),
        # What a person or a run leaves there is no part of the plugin.
        ("parts/notes.ipynb", "x", set()),
        ("run/pipeline.log", "x", set()),
        ("run/export/0001-01234567/hls/build.py", "x", set()),
        ("helper.py~", "x", set()),
    ],
)
def test_the_whole_package_of_an_installed_plugin_counts(
    installed_plugin: Path, file: str, text: str, counted: set[str]
) -> None:
    version = installed_plugin / "run" / "export" / "0001-01234567"
    (version / "hls").mkdir(parents=True)
    (version / MARKER).touch()
    code_digests_before = code_digests(["my_package.parts.trigger"])
    (installed_plugin / file).write_text(text)
    assert changed_in_plugin(code_digests_before) == counted


def test_a_module_that_a_plugin_imports_is_an_entry_point(installed_plugin: Path) -> None:
    """A feature that is declared there names its module."""
    code_digests_before = code_digests(["my_package.helper"])
    (installed_plugin / "helper.py").write_text("cut = 31\n")
    assert changed_in_plugin(code_digests_before, "my_package.helper") == {"my_package.helper"}


@pytest.mark.parametrize(
    ("file", "counts"),
    [("table.csv", True), ("tables/weights.npy", True), ("runs/demo/metrics.json", False)],
)
def test_files_that_a_plugin_of_one_file_names_count_and_others_beside_it_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, *, counts: bool
) -> None:
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setenv(plugins.VARIABLE, "")
    plugin = tmp_path / "found_here.py"
    plugin.write_text(
        "place = __file__, 'table.csv', 'tables', 'weights.npy', 'metrics.json'\nname = __name__\n"
    )
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("1")
    plugins.load([str(plugin)])
    try:
        code_digests_before = code_digests(["plugin_found_here"])
        (tmp_path / file).write_text("2")
        assert bool(changed_in_plugin(code_digests_before, "plugin_found_here")) == counts
    finally:
        del sys.modules["plugin_found_here"]


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
    digests_before = digests()
    table.write_text("20")
    assert {module for module, digest in digests().items() if digest != digests_before[module]} == {
        "features.a"
    }


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
    page, cutflow = (
        code_digests([f"pipeline.reporting.{module}"]) for module in ("page", "cutflow")
    )
    (folder / name).write_text("two")
    code_meaning._read_module.cache_clear()
    assert code_digests(["pipeline.reporting.page"]) != page
    assert code_digests(["pipeline.reporting.cutflow"]) == cutflow


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_the_shell_counts_in_no_stage(stage: Stage) -> None:
    config = load_config("demo", [])
    chunks = stage.parts(config).values()
    entries = [
        *stage.entry_points(config),
        *(entry_point for chunk in chunks for entry_point in chunk.entry_points),
    ]
    names = set(code_digests(entries))
    shell = {name for name in names if name.count(".") > 1 and name.startswith("pipeline.")}
    allowed = (
        "pipeline.stages.",
        "pipeline.reporting.",
        "pipeline.runs.trained_models",
        "pipeline.runs.best_settings",
        "pipeline.configuration.simulate_section",
    )
    assert all(name.startswith(allowed) for name in shell)


@pytest.mark.parametrize(
    ("entries", "within", "without"),
    [
        # Only `evaluate-files` reads exported models.
        (("evaluate",), {"models.saved_model"}, ("models.export",)),
        # It imported the cutflow for two sums, and the column table and intervals with it.
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
        # A change of the events' schema made the keys of events unknown: with other code, copies
        # cannot be told.
        (("ingestion.copies",), {"ingestion.copies"}, ("ingestion.schema",)),
    ],
)
def test_code_that_a_result_does_not_need_does_not_count(
    entries: tuple[str, ...], within: set[str], without: tuple[str, ...]
) -> None:
    stages = {stage.name: stage.entry_points(load_config("demo", [])) for stage in STAGES}
    results = code_digests(module for entry in entries for module in stages.get(entry, (entry,)))
    assert within <= set(results)
    assert [name for name in results if name.startswith(without)] == []


def test_grid_search_and_slots_of_spark_count_only_where_they_are_used() -> None:
    config = load_config("demo", ["model.names=[hlf, particles]", "model.hlf.from_gridsearch=true"])
    (train,) = (stage for stage in STAGES if stage.name == "train")
    hlf, particles = (
        set(code_digests(train.parts(config)[name].entry_points)) for name in ("hlf", "particles")
    )
    of_search = {"training.gridsearch.settings", "pipeline.runs.best_settings"}
    assert of_search <= hlf
    assert not of_search & particles
    assert not {"training.launching.spark_job", "training.launching.spark_agent"} & (
        hlf | particles
    )
