"""The config: options, sources of values, and messages about mistakes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from minimal_configs import MINIMAL, config_mistakes, write_config
from pydantic import SecretStr

from features.settings import FeatureSettings
from hep_core.secrets import redact
from ingestion.settings import IngestSettings
from pipeline.config import SHIPPED, find_config, load, load_config
from pipeline.errors import ConfigError
from pipeline.reporting.origin import BUNDLED
from pipeline.runs.code_meaning import ROOT


def test_a_minimal_config_has_all_defaults(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path))
    assert (config.features, config.ingest) == (FeatureSettings(), IngestSettings())
    assert config.classes == ["QCD", "ttbar", "W+jets"]


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_are_valid_and_comment_every_key(path: Path) -> None:
    assert load_config(path.stem)
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    inside_samples = False
    for state_before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("samples:"):
            inside_samples = True
        elif not line.startswith((" ", "#")):
            inside_samples = False
        key = line.split(":")[0]
        is_key = not line.strip().startswith(("#", "-")) and ":" in line
        is_section = is_key and line.rstrip().endswith(":")
        if is_key and not is_section and not inside_samples:
            assert state_before.strip().startswith("#"), f"{key.strip()} has no comment"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"features": {"isolation_con": 0.4}},
            "unknown key 'features.isolation_con'. Did you mean 'isolation_cone'?",
        ),
        (
            {"samples": [{**MINIMAL["samples"][0], "file": "x"}]},
            "'samples.0.file'. Did you mean 'files'?",
        ),
        ({"features": {"split": {"trian": 1}}}, "'features.split.trian'. Did you mean 'train'?"),
        ({"feature": {}}, "'feature'. Did you mean 'features'?"),
        ({"model": {"hlf": {"hiden": [5]}}}, "'model.hlf.hiden'. Did you mean 'hidden'?"),
        ({"train": {"epochs": "many"}}, "(given: 'many')"),
        ({"train": {"learning_rate": float("inf")}}, "'train.learning_rate'"),
        (
            {"samples": [{"name": "<b>", "label": 0, "files": ["a"]}]},
            "'samples.0.name': String should match pattern",
        ),
        (
            {"run_dir": "s3://bucket/run"},
            "run_dir: 's3://bucket/run' is a URL, and outputs go to local file systems",
        ),
        ({"storage": "s3://me:hush@bucket/night"}, "storage: this is no folder of a bucket"),
        ({"storage": "s3://bucket/../night"}, "storage: this is no folder of a bucket"),
        (
            {"train_by_network": {"hfl": {"epochs": 3}}},
            "train_by_network.hfl: there is no network 'hfl'",
        ),
        ({"gridsearch": {"hidden": [[0]]}}, "'gridsearch.hidden.0.0'"),
    ],
    ids=str,
)
def test_a_mistake_is_named_with_its_key_and_the_nearest_name(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    message = config_mistakes(tmp_path, **changes)
    assert text in message
    assert "hush" not in message


def test_all_mistakes_are_listed_at_once(tmp_path: Path) -> None:
    assert "2 mistakes" in config_mistakes(tmp_path, train={"epochs": 0}, features={"btag": 1})
    contradictions = {"classes": ["QCD", "ttbar", "W+jets", "Z"], "features": {"min_lepton_pt": 10}}
    message = config_mistakes(
        tmp_path, **contradictions, evaluate={"signal": "ttbra", "luminosity": 1e34}
    )
    assert re.search(
        r"has 4 mistakes:\n  class 'Z'.*\n.*'ttbra'.*\n.*min_lepton_pt.*\n.*luminosity: 1e\+34 has no",
        message,
    )
    path = tmp_path / "c.yaml"
    path.write_text("run_dir: x\n")
    with pytest.raises(ConfigError, match=r"(?s)'classes' is missing.*'samples' is missing"):
        load_config(str(path))


def test_a_network_may_have_keys_of_its_own(tmp_path: Path) -> None:
    config = load_config(
        write_config(
            tmp_path,
            model={"names": ["hlf", "particles"]},
            train={"epochs": 9, "seed": 4},
            train_by_network={"particles": {"epochs": 2, "learning_rate": 0.5}},
        )
    )
    assert config.training_of("hlf") == config.train
    changed = {"epochs": 2, "learning_rate": 0.5}
    assert config.training_of("particles") == config.train.model_copy(update=changed)


def test_further_trainings_have_the_next_seeds_and_folders_of_their_own(tmp_path: Path) -> None:
    config = load_config(
        write_config(tmp_path, train={"seed": 2**32 - 2}, train_by_network={"hlf": {"seeds": 3}})
    )
    trainings = config.trainings_of("hlf")
    assert list(trainings) == ["hlf", "hlf-seed-4294967295", "hlf-seed-0"]
    first, *further = trainings.values()
    assert first == config.training_of("hlf")
    assert further == [first.model_copy(update={"seed": seed}) for seed in (2**32 - 1, 0)]
    assert list(config.trainings_of("particles")) == ["particles"]
    # Their number changes no training, so that more of them leave the others as they are.
    assert first.result_items() == config.training_of("particles").result_items()


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
    # What the terminal shows.
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


def test_files_that_are_no_config_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for document, message in (
        ("- a\n- b\n", "must hold keys and values"),
        ("a: [1", "no valid YAML"),
    ):
        path.write_text(document)
        with pytest.raises(ConfigError, match=message):
            load_config(str(path))
    with pytest.raises(ConfigError, match="Did you mean 'demo'"):
        find_config("demos")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.algorithm=adpsgd"], "Did you mean 'ad-psgd'?"),
        (["features.balance=weigths"], "(given: 'weigths'). Did you mean 'weights'?"),
        (["model.names=[hfl]"], "Did you mean 'hlf'?"),
        (
            ["train.topology=ring"],
            "unknown key 'train.topology'. 'algorithm.topology' is a key of ad-psgd, ",
        ),
        (["train.algorithm={name: sgd, local_steps: 4}"], "'local_steps' is a key of agn, "),
        (
            ["train.algorithm={name: sharded, overlap: thread}", "train.algorithm.name=swarm-sgd"],
            "unknown key 'train.algorithm.overlap'. 'overlap' is a key of sharded",
        ),
        (["train.algorithm={name: local-sgd, local_step: 4}"], "Did you mean 'local_steps'?"),
        (["train.algorithm={topology: ring}"], "'train.algorithm.name' is missing."),
        (
            ["train_by_network={particles: {overlap: inline}}"],
            (
                "train_by_network.particles: unknown key 'overlap'. 'algorithm.overlap' is a key of "
                "sharded"
            ),
        ),
    ],
)
def test_a_wrong_choice_names_the_nearest_and_the_method_that_has_the_key(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    assert message in config_mistakes(tmp_path, *overrides)


def test_a_method_is_given_by_name_or_with_its_keys(tmp_path: Path) -> None:
    written = write_config(tmp_path, train={"algorithm": "local-sgd"})
    loaded = load(written, ["train.algorithm.local_steps=4"])
    assert loaded.config.train.algorithm.model_dump() == {"name": "local-sgd", "local_steps": 4}
    assert (
        loaded.source(("train", "algorithm", "local_steps"))
        == "--set train.algorithm.local_steps=4"
    )
    assert loaded.source(("train", "algorithm", "name")) == written
    second = load(written, ["train.algorithm.local_steps=4", "train.algorithm=swarm-sgd"])
    assert second.config.train.algorithm.model_dump(exclude_unset=True) == {"name": "swarm-sgd"}
    assert second.source(("train", "algorithm", "name")) == "--set train.algorithm=swarm-sgd"
    assert (
        load(
            write_config(tmp_path), ["train.algorithm.name=d-psgd"]
        ).config.train.algorithm.model_dump()["topology"]
        == "ring"
    )


def test_the_demo_has_the_cross_sections_of_the_page_of_its_samples() -> None:
    page = (ROOT / "samples" / "README.md").read_text(encoding="utf-8")
    demo = load_config("demo")
    actual = {
        demo.classes[sample.label]: f"{sample.cross_section_pb:,.0f}" for sample in demo.samples
    }
    assert actual == dict(re.findall(r"^\| (\S+) \| ([\d,]+) \|", page, flags=re.MULTILINE))
    assert {sample.cross_section_pb for sample in demo.samples} == set(BUNDLED.values())


def test_overrides_are_read_as_yaml_and_win(tmp_path: Path) -> None:
    config = load_config(
        write_config(tmp_path, train={"epochs": 3}),
        ["train.epochs=7", "model.hlf.hidden=[5, 4]", "run_dir=y"],
    )
    assert (config.train.epochs, vars(config.model)["hlf"].hidden, config.run_dir) == (
        7,
        [5, 4],
        Path("y"),
    )


def test_text_in_an_override_stays_whole(tmp_path: Path) -> None:
    config = load_config(
        write_config(tmp_path),
        ["report.sample_note=MC #3 (50% stat)", "report.title='quoted # too'"],
    )
    assert (config.report.sample_note, config.report.title) == ("MC #3 (50% stat)", "quoted # too")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs", "write it as key.subkey=value"),
        ("=3", "write it as key.subkey=value"),
        ("run_dir.x=3", "'run_dir' holds a value"),
        ("train.epochs=[1", "no valid YAML"),
        ("train.epoks=3", "--set train.epoks=3: unknown key 'train.epoks'. Did you mean 'epochs'?"),
        # Once: "Did you mean 'report'?"
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
        ("spark.conf.my.password=[hush", ""),
    ],
)
def test_a_mistake_in_an_option_names_the_option_and_not_the_file(
    tmp_path: Path, override: str, message: str
) -> None:
    path = write_config(tmp_path)
    if not message:
        assert load_config(path, [override]).spark.conf == {"my.password": SecretStr("[hush")}
        return
    with pytest.raises(ConfigError) as caught:
        load_config(path, [override])
    assert str(caught.value).startswith("--set ")
    assert message in str(caught.value)
    assert path not in str(caught.value)


def test_values_that_contradict_each_other_are_of_the_file_and_of_the_options(
    tmp_path: Path,
) -> None:
    message = config_mistakes(tmp_path, "features.min_lepton_pt=10")
    assert (
        "config.yaml with --set features.min_lepton_pt=10 has 1 mistake:\n  features.min_lepton_pt "
        "(10) is below" in message
    )


def test_mistakes_of_the_file_and_of_options_are_separate(tmp_path: Path) -> None:
    path = write_config(tmp_path, train={"epochs": 0, "seeed": 3})
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["train.batch_size=0", "report.title=x"])
    first, *remainder = str(caught.value).splitlines()
    assert first == f"{path} has 2 mistakes:"
    assert [line.split(":")[0] for line in remainder] == [
        "  'train.epochs'",
        "  unknown key 'train.seeed'. Did you mean 'seed'?",
        "--set train.batch_size=0",
    ]
    assert remainder[-1].startswith("--set train.batch_size=0: 'train.batch_size': ")
    with pytest.raises(ConfigError, match=r"^--set train.epochs=-1: "):
        load_config(write_config(tmp_path), ["train.epochs=5", "train.epochs=-1"])


def test_properties_of_spark_and_items_of_lists_can_be_set(tmp_path: Path) -> None:
    config = load_config(
        write_config(tmp_path, spark={"conf": {"spark.a.b": "1"}}),
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
    actual = load(path, options)
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
    assert {keys: actual.source(keys) for keys in sources} == sources


def test_plugins_of_an_option_have_it_as_their_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hep_core.plugins.load", lambda _: None)
    loaded = load(write_config(tmp_path, plugins=["other"]), ["plugins=[mine]"])
    assert (loaded.config.plugins, loaded.source(("plugins",))) == (
        ["mine"],
        "--set plugins=[mine]",
    )


def test_a_weight_of_a_sample_is_one_of_all_samples(tmp_path: Path) -> None:
    samples = [
        {"name": "qcd", "label": 0, "files": ["q.root"], "weights": {"scale_upp": "none"}},
        {"name": "ttbar", "label": 1, "files": ["t.root"]},
        {"name": "wjets", "label": 2, "files": ["w.root"], "weights": {"scale_up": "none"}},
    ]
    message = config_mistakes(
        tmp_path, samples=samples, ingest={"weights": {"scale_up": "LHEWeight[1]"}}
    )
    assert "has 1 mistake" in message
    assert (
        "'qcd' has the weight 'scale_upp', which is none of ingest.weights. Did you mean "
        "'scale_up'?" in message
    )
