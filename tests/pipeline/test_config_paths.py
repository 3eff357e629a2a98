"""Where relative paths of a config start."""

from __future__ import annotations

from pathlib import Path

import pytest
from minimal_configs import MINIMAL, mistakes, write

from ingestion.errors import IngestionError
from ingestion.files import expand
from pipeline.config import SHIPPED, load_config
from pipeline.errors import ConfigError


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; configs lie in another."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.usefixtures("elsewhere")
def test_relative_paths_count_from_the_folder_of_the_file_and_in_options_from_the_current(tmp_path: Path) -> None:
    odd = tmp_path / "a [b] folder"
    odd.mkdir()
    samples = [{**MINIMAL["samples"][0], "files": ["data/*.root", "a.root", "/x/b.root", "https://x/c.root"]}]
    path = write(odd, samples=[*samples, *MINIMAL["samples"][1:]])
    config = load_config(path)
    assert config.run_dir == odd / "runs" / "x"
    first, *others = config.samples[0].files
    assert others == [f"{odd}/a.root", "/x/b.root", "https://x/c.root"]
    (odd / "data").mkdir()
    (odd / "data" / "1.root").touch()
    (source,) = expand([config.samples[0].model_copy(update={"files": [first]})])
    assert source.path == f"{odd}/data/1.root"
    assert load_config(write(tmp_path, run_dir="~/x")).run_dir == Path.home() / "x"
    config = load_config(path, ["run_dir=runs/y", "samples.0.files=[d.root]"])
    assert (config.run_dir, config.samples[0].files) == (Path("runs/y"), ["d.root"])


def test_a_path_that_counted_from_the_current_folder_is_an_error_that_says_so(tmp_path: Path, elsewhere: Path) -> None:
    path = write(tmp_path)
    (elsewhere / "runs" / "x" / "ingest").mkdir(parents=True)
    assert load_config(path).run_dir == tmp_path / "runs" / "x"
    (elsewhere / "runs" / "x" / "ingest" / "current.json").touch()
    with pytest.raises(ConfigError, match=r"run_dir: 'runs/x' exists in the current folder.*'here/runs/x'"):
        load_config(path)
    (elsewhere / "runs").rename(tmp_path / "runs")
    (elsewhere / "b.root").touch()
    with pytest.raises(ConfigError, match=r"samples.1.files: 'b.root' exists in the current folder"):
        load_config(path)
    (tmp_path / "b.root").touch()
    assert load_config(path).samples[1].files == [str(tmp_path / "b.root")]


def test_a_name_that_is_too_long_is_a_mistake_also_beside_other_runs(tmp_path: Path, elsewhere: Path) -> None:
    (elsewhere / "runs").mkdir()
    name = "x" * 300
    assert "run_dir: a name in it is 300 bytes long" in mistakes(tmp_path, run_dir=f"runs/{name}")
    samples = [{**MINIMAL["samples"][0], "files": [f"{name}.root"]}, *MINIMAL["samples"][1:]]
    config = load_config(write(tmp_path, samples=samples))
    with pytest.raises(IngestionError, match=f"{name}.root"):
        expand(config.samples[:1])


@pytest.mark.usefixtures("elsewhere")
def test_paths_in_a_shipped_config_count_from_the_current_folder() -> None:
    assert load_config("demo").run_dir == Path("runs/demo")
    assert load_config(str(SHIPPED / "demo.yaml")) == load_config("demo")
