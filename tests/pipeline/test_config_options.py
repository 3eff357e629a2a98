"""Options that change values of a config, and where each value comes from."""

from __future__ import annotations

from pathlib import Path

import pytest
from minimal_configs import mistakes, write
from pydantic import SecretStr

from pipeline.config import load, load_config
from pipeline.errors import ConfigError


def test_overrides_are_read_as_yaml_and_win(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path, train={"epochs": 3}), ["train.epochs=7", "model.hlf.hidden=[5, 4]", "run_dir=y"]
    )
    assert (config.train.epochs, vars(config.model)["hlf"].hidden, config.run_dir) == (7, [5, 4], Path("y"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.epochs", "write it as key.subkey=value"),
        ("=3", "write it as key.subkey=value"),
        ("run_dir.x=3", "'run_dir' holds a value"),
        ("train.epochs=[1", "no valid YAML"),
        ("train.epoch=3", "unknown key 'train.epoch'. Did you mean 'epochs'?"),
        # Once: "Did you mean 'report'?"
        ("epochs=3", "unknown key 'epochs'. Did you mean 'gridsearch.epochs' or 'train.epochs'?"),
        ("evaluate.jet_scale=0.02", "Did you mean 'evaluate.systematics.jet_scale'?"),
    ],
)
def test_wrong_overrides_are_explained(tmp_path: Path, override: str, words: str) -> None:
    assert words in mistakes(tmp_path, override)


def test_words_in_an_override_are_taken_whole(tmp_path: Path) -> None:
    config = load_config(write(tmp_path), ["report.sample_note=MC #3 (50% stat)", "report.title='quoted # too'"])
    assert (config.report.sample_note, config.report.title) == ("MC #3 (50% stat)", "quoted # too")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.epoks=3", "--set train.epoks=3: unknown key 'train.epoks'. Did you mean 'epochs'?"),
        (
            "train.epochs=0",
            "--set train.epochs=0: 'train.epochs': Input should be greater than or equal to 1 (given: 0).",
        ),
        ("samples.7.label=1", "--set samples.7.label=1: 'samples' has 3 items, counted from 0, no item '7'."),
        ("samples.first.label=1", "no item 'first'"),
        ("samples.0.lable=1", "--set samples.0.lable=1: unknown key 'samples.0.lable'. Did you mean 'label'?"),
        ("spark.conf.my.password=[hush", ""),
    ],
)
def test_a_mistake_in_an_option_names_the_option_and_not_the_file(tmp_path: Path, override: str, words: str) -> None:
    path = write(tmp_path)
    if not words:
        assert load_config(path, [override]).spark.conf == {"my.password": SecretStr("[hush")}
        return
    with pytest.raises(ConfigError) as caught:
        load_config(path, [override])
    assert str(caught.value).startswith("--set ")
    assert words in str(caught.value)
    assert path not in str(caught.value)


def test_values_that_contradict_each_other_are_of_the_file_and_of_the_options(tmp_path: Path) -> None:
    words = mistakes(tmp_path, "features.min_lepton_pt=10")
    assert (
        "config.yaml with --set features.min_lepton_pt=10 has 1 mistake:\n  features.min_lepton_pt (10) is below"
        in words
    )


def test_mistakes_of_the_file_stay_the_files(tmp_path: Path) -> None:
    path = write(tmp_path, train={"epochs": 0, "seeed": 3})
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["train.batch_size=0", "report.title=x"])
    first, *rest = str(caught.value).splitlines()
    assert first == f"{path} has 2 mistakes:"
    assert [line.split(":")[0] for line in rest] == [
        "  'train.epochs'",
        "  unknown key 'train.seeed'. Did you mean 'seed'?",
        "--set train.batch_size=0",
    ]
    assert rest[-1].startswith("--set train.batch_size=0: 'train.batch_size': ")
    with pytest.raises(ConfigError, match=r"^--set train.epochs=-1: "):
        load_config(write(tmp_path), ["train.epochs=5", "train.epochs=-1"])


def test_properties_of_spark_and_items_of_lists_can_be_set(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path, spark={"conf": {"spark.a.b": "1"}}),
        [
            "spark.conf.spark.sql.shuffle.partitions=4",
            "spark.conf.spark.speculation=true",
            "ingest.branch_map.tracks.pt=Track_pt",
            "samples.0={name: a, label: 1, files: [a]}",
            "samples.0.files.0=b",
            "samples.1.name=b",
            "samples.1.label=0",
            "classes.2=W",
            "train_by_network.hlf.epochs=7",
            "report.title=010",
        ],
    )
    assert config.spark.conf == {"spark.a.b": "1", "spark.sql.shuffle.partitions": "4", "spark.speculation": "true"}
    assert config.ingest.branch_map == {"tracks.pt": "Track_pt"}
    assert [sample.label for sample in config.samples] == [1, 0, 2]
    assert config.classes == ["QCD", "ttbar", "W"]
    assert config.training_of("hlf").epochs == 7
    assert config.report.title == "010"


def test_each_value_has_a_source(tmp_path: Path) -> None:
    path = write(tmp_path, train={"epochs": 3, "seed": 4})
    options = ["train={epochs: 5}", "train.workers=2", "classes.0=jets", "spark.conf.my.token=hush"]
    found = load(path, options)
    sources = {
        ("train", "epochs"): "--set train={epochs: 5}",
        # The option replaces the whole section.
        ("train", "seed"): "default",
        ("train", "workers"): "--set train.workers=2",
        ("classes",): "--set classes.0=jets",
        ("samples", 0, "name"): path,
        ("evaluate", "reference"): "default",
        ("spark", "conf", "my.token"): "--set spark.conf.my.token=***",
    }
    assert {keys: found.source(keys) for keys in sources} == sources
