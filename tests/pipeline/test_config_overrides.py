"""Overrides of the config by `--set`: values, sources, and messages that hide secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from minimal_configs import config_mistakes, write_config
from pydantic import SecretStr

from hep_core.secrets import redact
from pipeline.config import load, load_config
from pipeline.errors import ConfigError


def test_overrides_are_read_as_yaml_and_win(tmp_path: Path) -> None:
    path = write_config(tmp_path, train={"epochs": 3})

    config = load_config(path, ["train.epochs=7", "model.hlf.hidden=[5, 4]", "run_dir=y"])

    assert config.train.epochs == 7
    assert vars(config.model)["hlf"].hidden == [5, 4]
    assert config.run_dir == Path("y")


def test_text_in_an_override_stays_whole(tmp_path: Path) -> None:
    overrides = ["report.sample_note=MC #3 (50% stat)", "report.title='quoted # too'"]

    report = load_config(write_config(tmp_path), overrides).report

    assert report.sample_note == "MC #3 (50% stat)"
    assert report.title == "quoted # too"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs", "write it as key.subkey=value"),
        ("=3", "write it as key.subkey=value"),
        ("run_dir.x=3", "'run_dir' holds a value"),
        ("train.epochs=[1", "no valid YAML"),
        ("train.epoks=3", "--set train.epoks=3: unknown key 'train.epoks'. Did you mean 'epochs'?"),
        ("epochs=3", "unknown key 'epochs'. Did you mean 'gridsearch.epochs' or 'train.epochs'?"),
        ("evaluate.jet_scale=0.02", "Did you mean 'systematics.jet_scale'?"),
        (
            "train.epochs=0",
            (
                "--set train.epochs=0: 'train.epochs': Input should be greater than or equal to 1 "
                "(given: 0)."
            ),
        ),
        (
            "samples.7.label=1",
            "--set samples.7.label=1: 'samples' has 3 items, counted from 0, no item '7'.",
        ),
        ("samples.first.label=1", "no item 'first'"),
        (
            "samples.0.lable=1",
            "--set samples.0.lable=1: unknown key 'samples.0.lable'. Did you mean 'label'?",
        ),
    ],
)
def test_a_mistake_in_an_option_names_the_option_and_not_the_file(
    tmp_path: Path, override: str, message: str
) -> None:
    text = config_mistakes(tmp_path, override)

    assert text.startswith("--set ")
    assert message in text
    assert "config.yaml" not in text


def test_a_secret_in_an_override_is_no_yaml(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path), ["spark.conf.my.password=[hush"])

    assert config.spark.conf == {"my.password": SecretStr("[hush")}


def test_a_contradiction_names_the_file_and_the_options(tmp_path: Path) -> None:
    message = config_mistakes(tmp_path, "features.min_lepton_pt=10")

    assert (
        "config.yaml with --set features.min_lepton_pt=10 has 1 mistake:\n  features.min_lepton_pt "
        "(10) is below" in message
    )


def test_mistakes_of_the_file_and_of_options_are_separate(tmp_path: Path) -> None:
    overrides = ["train.batch_size=0", "report.title=x"]

    message = config_mistakes(tmp_path, *overrides, train={"epochs": 0, "seeed": 3})

    head, *mistakes = message.splitlines()
    assert head == f"{tmp_path / 'config.yaml'} has 2 mistakes:"
    starts = [
        "  'train.epochs': ",
        "  unknown key 'train.seeed'. Did you mean 'seed'?",
        "--set train.batch_size=0: 'train.batch_size': ",
    ]
    for mistake, start in zip(mistakes, starts, strict=True):
        assert mistake.startswith(start)


def test_of_two_overrides_of_a_key_the_last_is_named(tmp_path: Path) -> None:
    message = config_mistakes(tmp_path, "train.epochs=5", "train.epochs=-1")

    assert message.startswith("--set train.epochs=-1: ")


def test_properties_of_spark_and_items_of_lists_can_be_set(tmp_path: Path) -> None:
    overrides = [
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
    ]

    config = load_config(write_config(tmp_path, spark={"conf": {"spark.a.b": "1"}}), overrides)

    assert config.spark.conf == {
        "spark.a.b": "1",
        "spark.sql.shuffle.partitions": "4",
        "spark.speculation": "true",
    }
    assert config.ingest.branch_map == {"tracks.pt": "Track_pt"}
    assert [sample.label for sample in config.samples] == [1, 0, 2]
    assert config.classes == ["QCD", "ttbar", "W"]
    assert config.training_of("hlf").epochs == 7
    assert config.report.title == "010"


def test_each_value_has_a_source(tmp_path: Path) -> None:
    path = write_config(tmp_path, train={"epochs": 3, "seed": 4})
    options = ["train={epochs: 5}", "train.workers=2", "classes.0=jets", "spark.conf.my.token=hush"]

    loaded = load(path, options)

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
    assert {keys: loaded.source(keys) for keys in sources} == sources


def test_plugins_of_an_option_have_it_as_their_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hep_core.plugins.load", lambda _: None)

    loaded = load(write_config(tmp_path, plugins=["other"]), ["plugins=[mine]"])

    assert loaded.config.plugins == ["mine"]
    assert loaded.source(("plugins",)) == "--set plugins=[mine]"


def test_a_method_is_given_by_name_or_with_its_keys(tmp_path: Path) -> None:
    path = write_config(tmp_path, train={"algorithm": "local-sgd"})
    set_steps = "train.algorithm.local_steps=4"

    loaded = load(path, [set_steps])
    replaced = load(path, [set_steps, "train.algorithm=swarm-sgd"])
    named = load_config(write_config(tmp_path), ["train.algorithm.name=d-psgd"])

    name_key, steps_key = ("train", "algorithm", "name"), ("train", "algorithm", "local_steps")
    algorithm = loaded.config.train.algorithm
    assert algorithm.model_dump() == {"name": "local-sgd", "local_steps": 4}
    assert loaded.source(steps_key) == f"--set {set_steps}"
    assert loaded.source(name_key) == path
    algorithm = replaced.config.train.algorithm
    assert algorithm.model_dump(exclude_unset=True) == {"name": "swarm-sgd"}
    assert replaced.source(name_key) == "--set train.algorithm=swarm-sgd"
    assert named.train.algorithm.model_dump()["topology"] == "ring"


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (
            "spark.conf={cores: '4', 'my.password': 12345}",
            (
                "--set spark.conf=***: spark.conf: the value of my.password is no text; write it in "
                "quotes"
            ),
        ),
        (
            "spark.conf=my.password hush",
            "--set spark.conf=***: 'spark.conf': Input should be a valid dictionary (given: ***)",
        ),
        (
            "spark.conf={spark.driver.extraJavaOptions: -Dmy.password=hush}",
            "the list of processes shows spark.driver.extraJavaOptions",
        ),
        ("spark=password hush", "--set spark=***: 'spark': Input should be"),
        ("sprak.conf.my.password=hush", "--set sprak.conf.my.password=***: unknown key 'sprak'"),
        (
            "train.epochs={my.password: hush a}",
            "'train.epochs': Input should be a valid integer (given: ***)",
        ),
        ("train.launcher_args=[-x, MY_TOKEN=hush]", "give its name alone (-x MY_TOKEN)"),
        ("train_by_network.hlf.launcher_args=['--export=ALL,MY_TOKEN=hush']", "(-x MY_TOKEN)"),
        (
            'train_by_network={hlf: {launcher_args: "-x MY_TOKEN=hush"}}',
            "should be a valid list (given: ***)",
        ),
        ("train.epochs=https://me:hush@host", "(given: 'https://***@host')"),
        (
            "train_by_network.password={hush: [hush1",
            "--set train_by_network.password=***: the value is no",
        ),
        (
            "run_dir.x=https://me:hush@host",
            "--set run_dir.x=https://***@host: 'run_dir' holds a value",
        ),
    ],
)
def test_mistakes_show_no_secrets_and_stay_readable(
    tmp_path: Path, override: str, text: str
) -> None:
    message = config_mistakes(tmp_path, override)

    assert "hush" not in message
    assert "12345" not in message
    # The terminal shows the redacted message.
    assert "hush" not in redact(message)
    assert text in redact(message)


def test_lines_are_not_quoted_since_they_may_hold_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("spark:\n  conf:\n    my.password: hush1 hush2: x\n")

    with pytest.raises(
        ConfigError, match=r"mapping values are not allowed here \(line 3, column 29\)"
    ) as caught:
        load_config(str(path))

    assert "hush" not in str(caught.value)


def test_credentials_of_spark_are_given_to_spark_alone(tmp_path: Path) -> None:
    conf = {"spark.hadoop.fs.s3a.secret.key": "hush-9d8c", "spark.executor.cores": "4"}

    config = load_config(write_config(tmp_path, spark={"conf": conf}))

    secret = config.spark.conf["spark.hadoop.fs.s3a.secret.key"]
    assert isinstance(secret, SecretStr)
    assert secret.get_secret_value() == "hush-9d8c"
    assert config.spark.conf["spark.executor.cores"] == "4"
    assert "hush" not in f"{config} {config.model_dump()} {config.model_dump_json()}"
    assert redact("java says hush-9d8c") == "java says ***"
