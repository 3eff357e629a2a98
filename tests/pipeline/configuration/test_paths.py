"""Paths of a config: where relative ones start, and which folders outputs can go to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_origin

import pytest
from minimal_configs import MINIMAL, write_config
from pydantic import BaseModel

from ingestion.files import expand
from pipeline.config import SHIPPED, Config, load_config
from pipeline.configuration.paths import PATHS, folder_of_option
from pipeline.errors import ConfigError
from pipeline.runs.code_meaning import ROOT


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; configs lie in another."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.usefixtures("elsewhere")
def test_relative_paths_count_from_the_folder_of_the_file_and_in_options_from_the_current(
    tmp_path: Path,
) -> None:
    odd = tmp_path / "a [b] folder"
    odd.mkdir()
    samples = [
        {
            **MINIMAL["samples"][0],
            "files": ["data/*.root", "a.root", "/x/b.root", "https://x/c.root"],
        }
    ]
    path = write_config(odd, samples=[*samples, *MINIMAL["samples"][1:]])
    config = load_config(path)
    assert config.run_dir == odd / "runs" / "x"
    first, *remaining = config.samples[0].files
    assert remaining == [f"{odd}/a.root", "/x/b.root", "https://x/c.root"]
    (odd / "data").mkdir()
    (odd / "data" / "1.root").touch()
    (source,) = expand([config.samples[0].model_copy(update={"files": [first]})])
    assert source.path == f"{odd}/data/1.root"
    assert load_config(write_config(tmp_path, run_dir="~/x")).run_dir == Path.home() / "x"
    config = load_config(path, ["run_dir=runs/y", "samples.0.files=[d.root]"])
    assert (config.run_dir, config.samples[0].files) == (Path("runs/y"), ["d.root"])


@pytest.mark.usefixtures("elsewhere")
def test_home_and_variables_are_replaced_in_each_path_of_file_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHT", "7")
    monkeypatch.setenv("HOME", "/home/ada")
    document = {
        "run_dir": "runs/$NIGHT",
        "storage": "s3://bucket/${NIGHT}",
        "samples": [
            {**MINIMAL["samples"][0], "files": ["~/x.root", "$NIGHT/**.root"]},
            *MINIMAL["samples"][1:],
        ],
        "simulate": {"processes": [{"name": "zz", "file": "$NIGHT.cmnd"}]},
        "compare": {"workload": {"folder": "~/mnist"}},
        "spark": {"executor_python": "~/bin/python"},
        "train": {"launcher_args": ["--hostfile", "$NIGHT.hosts"]},
    }
    config = load_config(write_config(tmp_path, **document))
    assert config.run_dir == tmp_path / "runs" / "7"
    assert config.storage == "s3://bucket/7"
    assert config.samples[0].files == ["/home/ada/x.root", f"{tmp_path}/7/**.root"]
    assert config.simulate.processes[0].file == tmp_path / "7.cmnd"
    assert config.compare["workload"]["folder"] == "/home/ada/mnist"
    assert config.spark.executor_python == "/home/ada/bin/python"
    assert config.train.launcher_args == ["--hostfile", "7.hosts"]
    options = load_config(
        write_config(tmp_path), ["run_dir=~/$NIGHT", "samples.0.files=[$NIGHT.root]"]
    )
    assert (options.run_dir, options.samples[0].files) == (Path("/home/ada/7"), ["7.root"])
    for text, message in {
        "$NIGHTS/a": "no variable 'NIGHTS'. Nearest: NIGHT",
        "~no-such-user/a": "no home folder",
    }.items():
        with pytest.raises(ConfigError, match=f"config.yaml: run_dir: .*{message}"):
            load_config(write_config(tmp_path, run_dir=text))
        with pytest.raises(ConfigError, match=f"--set: samples.0.files.0: .*{message}"):
            load_config(write_config(tmp_path), [f"samples.0.files=[{text}]"])


def test_each_path_of_the_config_is_among_them() -> None:
    # Texts that may be paths.
    remaining = {
        "storage",
        "spark.executor_python",
        "train.launcher_args.*",
        "samples.*.files.*",
        "evaluate.data.*",
    }
    remaining |= {path for path in PATHS if path.startswith("compare")}
    assert remaining | {
        key for key, kind_name in _fields(Config, "") if "Path" in str(kind_name)
    } == {*PATHS}


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, object]]:
    """All keys of a section with their types, those of lists of sections with a star."""
    for name, field in model.model_fields.items():
        (kind_name, *_), many = (
            (
                *(argument for argument in get_args(field.annotation) if get_origin(argument)),
                field.annotation,
            ),
            "",
        )
        if get_origin(kind_name) is list:
            kind_name, many = get_args(kind_name)[0], ".*"
        if isinstance(kind_name, type) and issubclass(kind_name, BaseModel):
            yield from _fields(kind_name, f"{prefix}{name}{many}.")
        else:
            yield f"{prefix}{name}{many}", kind_name


@pytest.mark.usefixtures("elsewhere")
def test_paths_in_a_shipped_config_count_from_the_current_folder() -> None:
    assert load_config("demo").run_dir == Path("runs/demo")
    assert load_config(str(SHIPPED / "demo.yaml")) == load_config("demo")


def test_the_default_config_of_a_wheel_named_a_folder_that_was_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundled events lie in the checkout, or where a wheel installs them, whatever the current folder is."""
    monkeypatch.chdir(ROOT)
    assert load_config("demo").samples[0].files == ["samples/qcd_13TeV_PU20_*.root"]
    monkeypatch.chdir(tmp_path)
    assert load_config("demo").samples[0].files == [str(ROOT / "samples" / "qcd_13TeV_PU20_*.root")]
    monkeypatch.setattr("pipeline.configuration.paths.ROOT", tmp_path / "site-packages")
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert load_config("demo").samples[0].files == [
        str(tmp_path / "share" / "hep-pipeline" / "samples" / "qcd_13TeV_PU20_*.root")
    ]
    assert load_config("simulated").samples[0].files == ["simulate://qcd"]
    own = load_config(write_config(tmp_path), ["samples.0.files=[bundled://a.root]"])
    assert own.samples[0].files == [str(tmp_path / "share" / "hep-pipeline" / "samples" / "a.root")]
    shutil.copy(SHIPPED / "demo.yaml", tmp_path / "copy.yaml")
    assert load_config(str(tmp_path / "copy.yaml")).samples == load_config("demo").samples


@pytest.mark.parametrize("url", ["s3://bucket/run", Path("s3://bucket/run"), "file:///tmp/run"])
def test_of_a_folder_on_the_command_line_the_option_is_named_and_urls_are_refused(
    url: str | Path,
) -> None:
    assert folder_of_option(Path("runs/a#b? ü"), "--out") == Path("runs/a#b? ü")
    with pytest.raises(
        ConfigError, match=r"^--out: '.*' is a URL, and outputs go to local file systems only"
    ):
        folder_of_option(url, "--out")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^--out: .*write the whole path"):
        folder_of_option(Path("~nobody-of-this-name/run"), "--out")
