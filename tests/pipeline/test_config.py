"""The config: every mistake is named with its key, the nearest valid name and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from features.settings import FeatureSettings
from ingestion.secrets import is_telling, redact
from ingestion.settings import IngestSettings
from pipeline.config import SHIPPED, Config, find_config, flat_items, load_config
from pipeline.errors import ConfigError
from pipeline.runs.code_meaning import ROOT
from training.settings import TrainSettings

MINIMAL: dict[str, Any] = {
    "run_dir": "runs/x",
    "samples": [
        {"name": "qcd", "label": 0, "files": ["a.root"]},
        {"name": "ttbar", "label": 1, "files": ["b.root"]},
        {"name": "wjets", "label": 2, "files": ["c.root"]},
    ],
}


def write(folder: Path, **changes: Any) -> str:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, **changes}))
    return str(path)


def mistakes(folder: Path, *overrides: str, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(write(folder, **changes), overrides)
    return str(caught.value)


def test_a_minimal_config_has_all_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path))
    assert (config.features, config.ingest) == (FeatureSettings(), IngestSettings())
    assert config.classes == ["QCD", "ttbar", "W+jets"]


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_are_valid_and_comment_every_key(path: Path) -> None:
    assert load_config(path.stem)
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    inside_samples = False
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("samples:"):
            inside_samples = True
        elif not line.startswith((" ", "#")):
            inside_samples = False
        key = line.split(":")[0]
        is_key = not line.strip().startswith(("#", "-")) and ":" in line
        is_section = is_key and line.rstrip().endswith(":")
        if is_key and not is_section and not inside_samples:
            assert before.strip().startswith("#"), f"{key.strip()} has no comment"


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    message = mistakes(tmp_path, features={"isolation_con": 0.4})
    assert "unknown key 'features.isolation_con'. Did you mean 'isolation_cone'?" in message


def test_an_unknown_key_inside_a_sample_and_inside_split(tmp_path: Path) -> None:
    samples = [{**MINIMAL["samples"][0], "file": "x"}, *MINIMAL["samples"][1:]]
    assert "'samples.0.file'. Did you mean 'files'?" in mistakes(tmp_path, samples=samples)
    assert "'features.split.trian'. Did you mean 'train'?" in mistakes(tmp_path, features={"split": {"trian": 1}})


def test_an_unknown_section_names_the_nearest(tmp_path: Path) -> None:
    assert "'feature'. Did you mean 'features'?" in mistakes(tmp_path, feature={})


def test_a_wrong_type_names_the_key_and_the_value(tmp_path: Path) -> None:
    message = mistakes(tmp_path, train={"epochs": "many"})
    assert "'train.epochs'" in message
    assert "'many'" in message


def test_all_mistakes_are_listed_at_once(tmp_path: Path) -> None:
    message = mistakes(tmp_path, train={"epochs": 0}, features={"btag": 1})
    assert "2 mistakes" in message


def test_missing_keys_are_named(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("run_dir: x\n")
    with pytest.raises(ConfigError, match="'samples' is missing"):
        load_config(str(path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": ["QCD", "ttbar", "W+jets", "Z"]}, "class 'Z' (label 3) has no samples"),
        ({"classes": ["QCD", "ttbar"]}, "'wjets' has the label 2, but classes has only 2 names"),
        ({"samples": [MINIMAL["samples"][0], MINIMAL["samples"][0]]}, "the name 'qcd' is given twice"),
        ({"features": {"min_lepton_pt": 10}}, "features.min_lepton_pt (10) is below ingest.min_lepton_pt (23)"),
        ({"features": {"split": {"train": 0.5, "val": 0.5, "test": 0.5}}}, "add up to 1.5"),
        ({"train": {"algorithm": "sgd", "workers": 3}}, "use ar-sgd"),
        ({"train": {"launcher_args": ["-np", "3"]}}, "set train.workers instead"),
        ({"train": {"learning_rate": float("inf")}}, "'train.learning_rate'"),
        ({"train": {"seed": 10**23}}, "'train.seed'"),
        ({"classes": ["A", "A", "B"]}, "'A' is blank or given twice"),
        ({"classes": ["A", " ", "B"]}, "' ' is blank or given twice"),
        ({"run_dir": str(ROOT)}, "holds the code of the pipeline"),
        ({"run_dir": str(ROOT / "features" / "x")}, "holds the code of the pipeline"),
        ({"ingest": {"branch_map": {"moons": "Muon"}}}, "'moons' is no collection or field"),
        ({"model": {"names": ["hlf", "hlf"]}}, "'hlf' is given twice"),
        ({"model": {"names": ["hfl"]}}, "'model.names.0'"),
        ({"model": {"hlf": {"hiden": [5]}}}, "'model.hlf.hiden'. Did you mean 'hidden'?"),
        ({"train_by_network": {"hfl": {"epochs": 3}}}, "'train_by_network.hfl"),
        (
            {"train_by_network": {"particles": {"epoch": 3}}},
            "train_by_network: particles: 'train' has no key 'epoch'. Did you mean 'epochs'?",
        ),
        ({"train_by_network": {"particles": {"epochs": 0}}}, "train_by_network.particles: epochs: "),
        (
            {"train": {"workers": 2}, "train_by_network": {"particles": {"algorithm": "sgd"}}},
            "train_by_network.particles: ",
        ),
        ({"evaluate": {"signal": "ttbra"}}, "there is no class 'ttbra'. Did you mean 'ttbar'?"),
        ({"gridsearch": {"hidden": [[0]]}}, "'gridsearch.hidden.0.0'"),
        ({"gridsearch": {"folds": 1}}, "'gridsearch.folds'"),
        ({"gridsearch": {"learning_rate": [-0.1]}}, "'gridsearch.learning_rate.0'"),
        ({"gridsearch": {"search": "halving", "epochs": [3, 9]}}, "set epochs to one number, the highest"),
    ],
)
def test_contradictions_are_named_with_the_fix(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    assert words in mistakes(tmp_path, **changes)


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "<script>", "a b"])
def test_sample_names_cannot_be_paths_or_markup(tmp_path: Path, name: str) -> None:
    samples = [{**MINIMAL["samples"][0], "name": name}, *MINIMAL["samples"][1:]]
    assert "'samples.0.name'" in mistakes(tmp_path, samples=samples)


def test_overrides_are_read_as_yaml_and_win(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path, train={"epochs": 3}), ["train.epochs=7", "model.hlf.hidden=[5, 4]", "run_dir=y"]
    )
    assert (config.train.epochs, config.model.hlf.hidden, config.run_dir) == (7, [5, 4], Path("y"))


def test_a_network_is_trained_as_all_are_but_for_its_own_keys(tmp_path: Path) -> None:
    config = load_config(
        write(
            tmp_path,
            model={"names": ["hlf", "particles"]},
            train={"epochs": 9, "seed": 4},
            train_by_network={"particles": {"epochs": 2, "learning_rate": 0.5}},
        )
    )
    assert config.training_of("hlf") == config.train
    changed = {"epochs": 2, "learning_rate": 0.5}
    assert config.training_of("particles") == config.train.model_copy(update=changed)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.epochs", "write it as key.subkey=value"),
        ("=3", "write it as key.subkey=value"),
        ("run_dir.x=3", "'run_dir' holds a value"),
        ("train.epochs=[1", "no valid YAML"),
        ("train.epoch=3", "unknown key 'train.epoch'. Did you mean 'epochs'?"),
    ],
)
def test_wrong_overrides_are_explained(tmp_path: Path, override: str, words: str) -> None:
    assert words in mistakes(tmp_path, override)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "spark.conf.fs.s3a.secret.key=hush",
            "'spark.conf.fs' (its value is not shown): Input should be a valid string.",
        ),
        ("spark.conf={cores: 4, 'my.password': 12345}", "'spark.conf.my.password' (its value is not shown): Input"),
        ("spark.conf=hush", "'spark.conf' (its value is not shown): Input should be a valid dictionary"),
        (
            "train.epochs={my.password: hush a}",
            "'train.epochs': Input should be a valid integer (given: {'my.password': '***'})",
        ),
        ("train.launcher_args=MY_TOKEN=hush, hush", "(given: 'MY_TOKEN=***')"),
        ("train.launcher_args={--password: [hush]}", "(given: {'--password': ***})"),
        (
            "spark.conf.my.password={hush: [hush1",
            "--set spark.conf.my.password=***: the value is no valid YAML (a mistake",
        ),
        ("spark.conf.my.password: hush, hush", "write it as key.subkey=value"),
        ("run_dir.password=hush, hush", "--set run_dir.password=***: 'run_dir' holds a value"),
    ],
)
def test_mistakes_show_no_secrets_and_stay_readable(tmp_path: Path, override: str, words: str) -> None:
    message = mistakes(tmp_path, override)
    assert "hush" not in message
    assert "12345" not in message
    # What the terminal shows.
    assert "hush" not in redact(message)
    assert words in redact(message)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("spark:\n  conf:\n    my.password: hush1 hush2: x\n", "a mistake in line 3, column 29, which is not shown"),
        ("spark: {conf: {my.password: *hush}}\n", "a mistake in line 1, column 29, which is not shown"),
        ("samples: @files\n", "cannot start any token"),
    ],
)
def test_lines_that_may_hold_a_secret_are_not_quoted(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(str(path))
    assert "hush" not in str(caught.value)
    assert words in str(caught.value)


def test_no_key_of_the_config_is_taken_for_a_secret(tmp_path: Path) -> None:
    def keys(content: Any) -> list[str]:
        if isinstance(content, dict):
            return [*content, *(key for value in content.values() for key in keys(value))]
        return [key for value in content for key in keys(value)] if isinstance(content, list) else []

    found = keys(load_config(write(tmp_path)).model_dump(mode="json"))
    assert "learning_rate" in found
    assert [key for key in found if is_telling(key)] == []


def test_files_that_are_no_config_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for content, words in (("- a\n- b\n", "must hold keys and values"), ("a: [1", "no valid YAML")):
        path.write_text(content)
        with pytest.raises(ConfigError, match=words):
            load_config(str(path))
    with pytest.raises(ConfigError, match="Did you mean 'demo'"):
        find_config("demos")


def test_yaml_cannot_run_code(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"run_dir: !!python/object/apply:os.system ['touch {tmp_path}/boom']\n")
    with pytest.raises(ConfigError):
        load_config(str(path))
    assert not (tmp_path / "boom").exists()


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("run_dir: x\ntrain: {epochs: 3}\ntrain: {seed: 4}\n")
    with pytest.raises(ConfigError, match="the key 'train' is given twice"):
        load_config(str(path))


def test_words_in_an_override_are_taken_whole(tmp_path: Path) -> None:
    config = load_config(write(tmp_path), ["report.sample_note=MC #3 (50% stat)", "report.title='quoted # too'"])
    assert (config.report.sample_note, config.report.title) == ("MC #3 (50% stat)", "quoted # too")


def test_a_config_survives_a_round_trip_through_yaml(tmp_path: Path) -> None:
    config = load_config(write(tmp_path))
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert load_config(str(path)) == config


def test_keys_that_change_only_speed_never_make_a_stage_stale() -> None:
    assert "ingest.entries_per_task" not in flat_items(IngestSettings(), "ingest")
    assert "train.launcher_args" not in flat_items(TrainSettings(), "train")
    assert flat_items(FeatureSettings(), "features")["features.split.train"] == 0.64


def test_every_key_has_a_docstring() -> None:
    def fields(model: Any, prefix: str) -> list[tuple[str, str | None]]:
        found = []
        for name, field in model.model_fields.items():
            if hasattr(field.annotation, "model_fields"):
                found += fields(field.annotation, f"{prefix}{name}.")
            else:
                found.append((prefix + name, field.description))
        return found

    assert [name for name, description in fields(Config, "") if not description] == []
