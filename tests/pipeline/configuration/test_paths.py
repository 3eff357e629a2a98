"""Paths of a config: where relative ones start, and which folders outputs can go to."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from minimal_configs import MINIMAL, write_config
from pydantic import BaseModel

from ingestion.errors import FilesToComeError, NoFilesError
from ingestion.files import expand
from pipeline.config import SHIPPED, Config, load_config
from pipeline.configuration.paths import PATHS, folder_of_option
from pipeline.errors import ConfigError
from pipeline.runs.code_meaning import ROOT

FIRST_SAMPLE, *OTHER_SAMPLES = MINIMAL["samples"]


def samples_with_files(*files: str) -> list[dict[str, Any]]:
    """The samples of a minimal config; the first has these files."""
    return [{**FIRST_SAMPLE, "files": list(files)}, *OTHER_SAMPLES]


@pytest.fixture(autouse=True)
def current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; configs lie in the one above it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_relative_paths_of_a_file_start_at_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a [b] folder"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "1.root").touch()
    files = ("data/*.root", "a.root", "/x/b.root", "https://x/c.root")

    config = load_config(write_config(folder, samples=samples_with_files(*files)))

    assert config.run_dir == folder / "runs" / "x"
    pattern, *paths = config.samples[0].files
    assert paths == [f"{tmp_path}/a [[]b] folder/a.root", "/x/b.root", "https://x/c.root"]
    (source,) = expand([config.samples[0].model_copy(update={"files": [pattern]})])
    assert source.path == f"{folder}/data/1.root"


@pytest.mark.parametrize("name", ["{x,y}", "a[xy]", "a*"])
def test_the_folder_of_a_config_is_no_pattern(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    names = ("b1.root", "b2.root", "c.root")
    # What the name of the folder would match.
    for path in (folder, tmp_path / "x", tmp_path / "y", tmp_path / "ax"):
        path.mkdir()
        for file_name in names:
            (path / file_name).touch()
    files = ("b{1,2}.root", "[c].root", "c.root")

    config = load_config(write_config(folder, samples=samples_with_files(*files)))

    paths = [source.path for source in expand(config.samples[:1])]
    assert paths == [f"{folder}/{file_name}" for file_name in (*names, "c.root")]
    (folder / "c.root").unlink()
    with pytest.raises(
        NoFilesError, match=re.escape(f"no file matches '{folder}/c.root'")
    ) as error:
        expand([config.samples[0].model_copy(update={"files": [config.samples[0].files[2]]})])
    # A path without wildcards of its own is wrong, and nobody waits for its file.
    assert not isinstance(error.value, FilesToComeError)


def test_relative_paths_of_options_start_at_the_current_folder(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path), ["run_dir=runs/y", "samples.0.files=[d.root]"])

    assert config.run_dir == Path("runs/y")
    assert config.samples[0].files == ["d.root"]


def test_home_and_variables_are_replaced_in_each_path_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHT", "7")
    monkeypatch.setenv("HOME", "/home/ada")

    config = load_config(
        write_config(
            tmp_path,
            run_dir="runs/$NIGHT",
            storage="s3://bucket/${NIGHT}",
            samples=samples_with_files("~/x.root", "$NIGHT/**.root"),
            simulate={"processes": [{"name": "zz", "file": "$NIGHT.cmnd"}]},
            compare={"workload": {"folder": "~/mnist"}},
            spark={"executor_python": "~/bin/python"},
            train={"launcher_args": ["--hostfile", "$NIGHT.hosts"]},
            train_by_network={"hlf": {"launcher_args": ["--hostfile", "~/hosts"]}},
            mlflow={"uri": "sqlite:///$NIGHT.db"},
            notify=["~/bin/tell", "~", "echo $1"],
        )
    )

    assert config.run_dir == tmp_path / "runs" / "7"
    assert config.storage == "s3://bucket/7"
    assert config.samples[0].files == ["/home/ada/x.root", f"{tmp_path}/7/**.root"]
    assert config.simulate.processes[0].file == tmp_path / "7.cmnd"
    assert config.compare["workload"]["folder"] == "/home/ada/mnist"
    assert config.spark.executor_python == "/home/ada/bin/python"
    assert config.train.launcher_args == ["--hostfile", "7.hosts"]
    assert config.training_of("hlf").launcher_args == ["--hostfile", "/home/ada/hosts"]
    assert config.mlflow.uri == f"sqlite:///{tmp_path}/7.db"
    assert config.notify == ["/home/ada/bin/tell", "~", "echo $1"]


def test_home_and_variables_are_replaced_in_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHT", "7")
    monkeypatch.setenv("HOME", "/home/ada")

    config = load_config(
        write_config(tmp_path), ["run_dir=~/$NIGHT", "samples.0.files=[$NIGHT.root]"]
    )

    assert config.run_dir == Path("/home/ada/7")
    assert config.samples[0].files == ["7.root"]


@pytest.mark.parametrize(
    ("address", "start", "path"),
    [
        ("mlruns", "", "mlruns"),
        ("./all/mlruns", "", "all/mlruns"),
        ("file:mlruns", "file:", "mlruns"),
        ("sqlite:///mlflow.db", "sqlite:///", "mlflow.db"),
        ("sqlite+pysqlite:///mlflow.db", "sqlite+pysqlite:///", "mlflow.db"),
    ],
)
def test_a_relative_address_of_mlflow_starts_at_the_folder_of_the_file(
    tmp_path: Path, address: str, start: str, path: str
) -> None:
    config = load_config(write_config(tmp_path, mlflow={"uri": address}))

    assert config.mlflow.uri is not None
    assert config.mlflow.uri.startswith(start)
    assert Path(config.mlflow.uri.removeprefix(start)) == tmp_path / path


@pytest.mark.parametrize(
    "address",
    [
        "https://mlflow.site:5000/$a",
        "databricks",
        "databricks-uc",
        "uc",
        "databricks://profile",
        "uc:profile",
        "postgresql://user@host/runs",
        "/all/mlruns",
        "file:/all/mlruns",
        "file:///all/mlruns",
        "sqlite:////all/mlflow.db",
        "sqlite:///:memory:",
    ],
)
def test_other_addresses_of_mlflow_stay_as_they_are(tmp_path: Path, address: str) -> None:
    config = load_config(write_config(tmp_path, mlflow={"uri": address}))

    assert config.mlflow.uri == address


def test_a_relative_address_of_mlflow_in_an_option_starts_at_the_current_folder(
    tmp_path: Path,
) -> None:
    config = load_config(write_config(tmp_path), ["mlflow.uri=sqlite:///mlflow.db"])

    assert config.mlflow.uri == "sqlite:///mlflow.db"


@pytest.mark.parametrize(
    ("program", "located_program"), [("./tell", "{folder}/tell"), ("tell", "tell")]
)
def test_the_program_of_notify_starts_at_the_folder_of_the_file_if_it_has_a_slash(
    tmp_path: Path, program: str, located_program: str
) -> None:
    config = load_config(write_config(tmp_path, notify=[program, "a/b"]))

    expected_program = Path(located_program.format(folder=tmp_path))
    assert (Path(config.notify[0]), config.notify[1]) == (expected_program, "a/b")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("$NIGHTS/a", "no variable 'NIGHTS'. Nearest: NIGHT"),
        ("~no-such-user/a", "no home folder"),
    ],
)
def test_an_unknown_variable_or_user_is_named_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str
) -> None:
    monkeypatch.setenv("NIGHT", "7")

    with pytest.raises(ConfigError, match=f"config.yaml: run_dir: .*{message}"):
        load_config(write_config(tmp_path, run_dir=path))
    with pytest.raises(ConfigError, match=f"--set: samples.0.files.0: .*{message}"):
        load_config(write_config(tmp_path), [f"samples.0.files=[{path}]"])


def test_the_list_of_paths_has_all_keys_whose_values_are_paths() -> None:
    path_keys = {key for key, annotation in keys_of(Config) if "Path" in str(annotation)}
    # Text that may be a path.
    text_keys = {
        "storage",
        "spark.executor_python",
        "train.launcher_args.*",
        "samples.*.files.*",
        "evaluate.data.*",
        "compare.workload.folder",
        "mlflow.uri",
        "notify.0",
        "train_by_network.*.launcher_args.*",
    }

    assert path_keys | text_keys == set(PATHS)


def keys_of(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, object]]:
    """All keys of a section with their types; a star is each item of a list."""
    for name, field in section.model_fields.items():
        key, annotation = f"{prefix}{name}", field.annotation
        generic_types = [arg for arg in get_args(annotation) if get_origin(arg)]
        if generic_types:
            annotation = generic_types[0]
        if get_origin(annotation) is list:
            key, annotation = f"{key}.*", get_args(annotation)[0]
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from keys_of(annotation, f"{key}.")
        else:
            yield key, annotation


def test_paths_in_a_shipped_config_start_at_the_current_folder() -> None:
    assert load_config("demo").run_dir == Path("runs/demo")
    assert load_config(str(SHIPPED / "demo.yaml")) == load_config("demo")


def test_the_bundled_events_lie_in_the_checkout(
    current_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = "qcd_13TeV_PU20_*.root"

    assert load_config("demo").samples[0].files == [str(ROOT / "samples" / pattern)]
    shutil.copy(SHIPPED / "demo.yaml", current_folder / "copy.yaml")
    assert load_config("copy.yaml").samples == load_config("demo").samples
    monkeypatch.chdir(ROOT)
    assert load_config("demo").samples[0].files == [f"samples/{pattern}"]


def test_the_bundled_events_of_a_wheel_lie_where_it_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.configuration.paths.ROOT", tmp_path / "site-packages")
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    samples = tmp_path / "share" / "hep-pipeline" / "samples"

    own_config = load_config(write_config(tmp_path), ["samples.0.files=[bundled://a.root]"])

    assert load_config("demo").samples[0].files == [str(samples / "qcd_13TeV_PU20_*.root")]
    assert load_config("simulated").samples[0].files == ["simulate://qcd"]
    assert own_config.samples[0].files == [str(samples / "a.root")]


def test_a_folder_of_an_option_may_have_any_name() -> None:
    assert folder_of_option(Path("runs/a#b? ü"), "--out") == Path("runs/a#b? ü")


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("s3://bucket/run", "'.*' is a URL, and outputs go to local file systems only"),
        ("file:///tmp/run", "'.*' is a URL, and outputs go to local file systems only"),
        ("~nobody-of-this-name/run", ".*write the whole path"),
    ],
)
def test_a_folder_that_outputs_cannot_go_to_is_refused_with_the_option(
    folder: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^--out: {message}"):
        folder_of_option(Path(folder), "--out")
