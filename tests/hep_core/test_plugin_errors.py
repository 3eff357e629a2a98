"""Which errors are those of a plugin."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import features.columns
from features.functions import high_level_feature
from hep_core import plugins
from hep_core.plugins import PluginError

FAILS = "def fail():\n    raise ValueError('mine')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for plugins that Python imports; there are no others in this process."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setenv(plugins.VARIABLE, "")
    modules = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if name.startswith("physics_"):
            del sys.modules[name]


def plugin_error(function: Callable[[], object]) -> PluginError | None:
    """What `plugins.plugin_error` makes of the ValueError of a function."""
    with pytest.raises(ValueError, match=r".") as caught:
        function()
    return plugins.plugin_error(caught.value)


def module_error(module: ModuleType) -> PluginError | None:
    """The error of a plugin when a module of `FAILS` fails."""
    return plugin_error(module.fail)


def test_an_error_in_any_module_of_an_installed_plugin_is_one_of_the_plugin(folder: Path) -> None:
    package = folder / "physics_package"
    package.mkdir()
    (package / "__init__.py").write_text("from physics_package import parts\n", encoding="utf-8")
    parts = package / "parts.py"
    parts.write_text(FAILS, encoding="utf-8")
    plugins.load(["physics_package"])

    error = module_error(sys.modules["physics_package.parts"])

    assert str(error) == f"plugin {parts}, line 2: ValueError: mine"


def test_other_packages_of_a_namespace_are_not_of_the_plugin(folder: Path) -> None:
    for name in ("trigger", "other"):
        package = folder / "physics_group" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("from . import parts\n", encoding="utf-8")
        (package / "parts.py").write_text(FAILS, encoding="utf-8")
    initial = folder / "physics_group" / "trigger" / "__init__.py"
    initial.write_text("import physics_group.other\nfrom . import parts\n", encoding="utf-8")
    plugins.load(["physics_group.trigger"])

    assert module_error(sys.modules["physics_group.trigger.parts"]) is not None
    assert module_error(sys.modules["physics_group.other.parts"]) is None


@pytest.mark.usefixtures("folder")
def test_a_plugin_inside_a_package_of_ours_is_one_file() -> None:
    plugins._loaded["features.columns"] = features.columns

    def refused() -> object:
        return high_level_feature(unit="1", meaning="x", log_above=-1)(plugin_error)

    assert plugin_error(refused) is None
