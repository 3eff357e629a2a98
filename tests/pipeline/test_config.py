"""The config: every mistake is named with its key, the nearest valid name and the fix."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from minimal_configs import MINIMAL, mistakes, write
from pydantic import SecretStr

from features.kernel_pass import unmixed_schema
from features.schema import features_schema
from features.settings import FeatureSettings
from ingestion.secrets import redact
from ingestion.settings import IngestSettings
from pipeline.config import SHIPPED, find_config, load, load_config
from pipeline.errors import ConfigError
from pipeline.reporting.origin import BUNDLED
from pipeline.runs.code_meaning import ROOT


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


def test_all_mistakes_are_listed_at_once(tmp_path: Path) -> None:
    message = mistakes(tmp_path, train={"epochs": 0}, features={"btag": 1})
    assert "2 mistakes" in message
    path = tmp_path / "c.yaml"
    path.write_text("run_dir: x\n")
    with pytest.raises(ConfigError, match=r"(?s)'classes' is missing.*'samples' is missing"):
        load_config(str(path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"features": {"isolation_con": 0.4}},
            "unknown key 'features.isolation_con'. Did you mean 'isolation_cone'?",
        ),
        (
            {"samples": [{**MINIMAL["samples"][0], "file": "x"}, *MINIMAL["samples"][1:]]},
            "'samples.0.file'. Did you mean 'files'?",
        ),
        ({"features": {"split": {"trian": 1}}}, "'features.split.trian'. Did you mean 'train'?"),
        ({"feature": {}}, "'feature'. Did you mean 'features'?"),
        ({"train": {"epochs": "many"}}, "(given: 'many')"),
        ({"classes": ["QCD", "ttbar", "W+jets", "Z"]}, "class 'Z' (label 3) has no samples"),
        (
            {
                "samples": [
                    {"name": f"{name}{label}", "label": label, "files": ["a"], "cross_section_pb": known}
                    for label in range(3)
                    for name, known in (("low", 2.0), ("high", None if label == 1 else 3.0))
                ]
            },
            "class 'ttbar': high1 has no cross_section_pb, but other samples of the class have one",
        ),
        (
            {"evaluate": {"luminosity": 1e34}},
            "luminosity: 1e+34 has no effect: it needs cross_section_pb of all samples",
        ),
        (
            {"features": {"integrated_luminosity": 3}},
            "integrated_luminosity: 3.0 has no effect: it needs samples with",
        ),
        ({"classes": ["QCD", "ttbar"]}, "'wjets' has the label 2, but classes has only 2 names"),
        ({"samples": [MINIMAL["samples"][0], MINIMAL["samples"][0]]}, "the name 'qcd' is given twice"),
        ({"features": {"min_lepton_pt": 10}}, "features.min_lepton_pt (10) is below ingest.min_lepton_pt (23)"),
        ({"features": {"split": {"train": 0.5, "val": 0.5, "test": 0.5}}}, "add up to 1.5"),
        ({"train": {"algorithm": "sgd", "workers": 3}}, "use ar-sgd"),
        ({"train": {"launcher_args": ["-np", "3"]}}, "set train.workers instead"),
        ({"train": {"learning_rate": float("inf")}}, "'train.learning_rate'"),
        ({"train": {"seed": 10**23}}, "'train.seed'"),
        ({"classes": ["A", "A", "B"]}, "'A' is blank, given twice"),
        ({"classes": ["A", " ", "B"]}, "' ' is blank, given twice"),
        ({"run_dir": "s3://bucket/run"}, "run_dir: 's3://bucket/run' is a URL, and outputs go to local file systems"),
        ({"samples": [{"name": "q" * 300, "label": 0, "files": ["a"]}]}, "at most 100 characters"),
        ({"run_dir": str(ROOT)}, "holds the code of the pipeline"),
        ({"run_dir": str(ROOT / "features" / "x")}, "holds the code of the pipeline"),
        ({"ingest": {"branch_map": {"moons": "Muon"}}}, "'moons' is no collection or field"),
        ({"ingest": {"pass_through": ["Event.Number"] * 2}}, "there is a column 'Event.Number' already"),
        ({"model": {"names": ["hlf", "hlf"]}}, "'hlf' is given twice"),
        ({"model": {"names": ["hfl"]}}, "model.names.0: there is no network 'hfl'"),
        ({"model": {"hlf": {"hiden": [5]}}}, "'model.hlf.hiden'. Did you mean 'hidden'?"),
        ({"train_by_network": {"hfl": {"epochs": 3}}}, "there is no network 'hfl'"),
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
        ({"evaluate": {"signal": ["ttbar", "WJets"]}}, "there is no class 'WJets'"),
        ({"evaluate": {"signal": ["QCD", "ttbar", "W+jets"]}}, "leave one for the background"),
        ({"gridsearch": {"hidden": [[0]]}}, "'gridsearch.hidden.0.0'"),
        ({"gridsearch": {"folds": 1}}, "'gridsearch.folds'"),
        ({"gridsearch": {"learning_rate": [-0.1]}}, "'gridsearch.learning_rate.0'"),
        ({"gridsearch": {"search": "halving", "epochs": [3, 9]}}, "set epochs to one number, the highest"),
    ],
)
def test_contradictions_are_named_with_the_fix(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    assert words in mistakes(tmp_path, **changes)


def test_sample_names_cannot_be_paths_or_markup(tmp_path: Path) -> None:
    for name in ("../evil", "a/b", "", "<script>", "a b"):
        samples = [{**MINIMAL["samples"][0], "name": name}, *MINIMAL["samples"][1:]]
        assert "'samples.0.name'" in mistakes(tmp_path, samples=samples)


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


def test_further_trainings_have_the_next_seeds_and_folders_of_their_own(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, train={"seed": 2**32 - 2}, train_by_network={"hlf": {"seeds": 3}}))
    trainings = config.trainings_of("hlf")
    assert list(trainings) == ["hlf", "hlf-seed-4294967295", "hlf-seed-0"]
    first, *further = trainings.values()
    assert first == config.training_of("hlf")
    assert further == [first.model_copy(update={"seed": seed}) for seed in (2**32 - 1, 0)]
    assert list(config.trainings_of("particles")) == ["particles"]
    # Their number changes no training, so that more of them leave the others as they are.
    assert first.result_items() == config.training_of("particles").result_items()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "spark.conf={fs.s3a.secret.key: [hush]}",
            "the value of fs.s3a.secret.key is no text; write it in quotes",
        ),
        (
            "spark.conf={cores: '4', 'my.password': 12345}",
            "--set spark.conf=***: spark.conf: the value of my.password is no text",
        ),
        (
            "spark.conf=my.password hush",
            "--set spark.conf=***: 'spark.conf': Input should be a valid dictionary (given: ***)",
        ),
        (
            "spark.conf={spark.driver.extraJavaOptions: -Dmy.password=hush}",
            "the list of processes shows spark.driver.extraJavaOptions",
        ),
        ("spark={conf: {my.password: [hush]}}", "--set spark=***: spark.conf: the value of my.password is no text"),
        ("spark=password hush", "--set spark=***: 'spark': Input should be"),
        ("sprak.conf.my.password=hush", "--set sprak.conf.my.password=***: unknown key 'sprak'"),
        ("train.epochs={my.password: hush a}", "'train.epochs': Input should be a valid integer (given: ***)"),
        ("train.launcher_args=MY_TOKEN=hush, hush", "'train.launcher_args': Input should be a valid list (given: ***)"),
        ("train.launcher_args=[-x, MY_TOKEN=hush]", "and give its name alone (-x MY_TOKEN)"),
        ("train_by_network.hlf.launcher_args=['--export=ALL,MY_TOKEN=hush']", "(-x MY_TOKEN)"),
        ("train.epochs=https://me:hush@host", "(given: 'https://***@host')"),
        (
            "train_by_network.password={hush: [hush1",
            "--set train_by_network.password=***: the value is no valid YAML: ",
        ),
        ("spark.master.password=hush, hush", "'spark.master': Input should be"),
        ("run_dir.x=https://me:hush@host", "--set run_dir.x=https://***@host: 'run_dir' holds a value"),
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
        (
            "spark:\n  conf:\n    my.password: hush1 hush2: x\n",
            "mapping values are not allowed here (line 3, column 29)",
        ),
        ("samples: @files\n", "cannot start any token"),
    ],
)
def test_lines_are_not_quoted_since_they_may_hold_a_secret(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(str(path))
    assert "hush" not in str(caught.value)
    assert words in str(caught.value)


def test_credentials_of_spark_are_given_to_spark_alone(tmp_path: Path) -> None:
    conf = {"spark.hadoop.fs.s3a.secret.key": "hush-9d8c", "spark.executor.cores": "4"}
    config = load_config(write(tmp_path, spark={"conf": conf}))
    secret = config.spark.conf["spark.hadoop.fs.s3a.secret.key"]
    assert isinstance(secret, SecretStr)
    assert secret.get_secret_value() == "hush-9d8c"
    assert config.spark.conf["spark.executor.cores"] == "4"
    assert "hush" not in f"{config} {config.model_dump()} {config.model_dump_json()}"
    assert redact("java says hush-9d8c") == "java says ***"


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


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["train.algorithm=adpsgd"], "Did you mean 'ad-psgd'?"),
        (["train.reader=petastrom"], "Did you mean 'petastorm'?"),
        (["model.names=[hfl]"], "Did you mean 'hlf'?"),
        (["features.convention=sparkdltriger"], "Did you mean 'sparkdltrigger'?"),
        (["train.topology=ring"], "unknown key 'train.topology'. 'train.algorithm.topology' is a key of ad-psgd, "),
        (["train.algorithm={name: sgd, local_steps: 4}"], "'train.algorithm.local_steps' is a key of agn, "),
        (
            ["train.algorithm={name: sharded, overlap: thread}", "train.algorithm.name=swarm-sgd"],
            "'train.algorithm.overlap' is a key of sharded",
        ),
        (["train.algorithm={name: local-sgd, local_step: 4}"], "Did you mean 'local_steps'?"),
        (["train.algorithm={topology: ring}"], "'train.algorithm.name' is missing."),
        (
            ["train_by_network={particles: {overlap: inline}}"],
            "no key 'overlap'. 'algorithm.overlap' is a key of sharded",
        ),
    ],
)
def test_a_wrong_choice_names_the_nearest_and_a_key_of_another_method_whose_it_is(
    tmp_path: Path, overrides: list[str], words: str
) -> None:
    assert words in mistakes(tmp_path, *overrides)


def test_a_method_is_given_by_name_or_with_its_keys(tmp_path: Path) -> None:
    written = write(tmp_path, train={"algorithm": "local-sgd"})
    loaded = load(written, ["train.algorithm.local_steps=4"])
    assert loaded.config.train.algorithm.model_dump() == {"name": "local-sgd", "local_steps": 4}
    assert loaded.source(("train", "algorithm", "local_steps")) == "--set train.algorithm.local_steps=4"
    assert loaded.source(("train", "algorithm", "name")) == written
    other = load(written, ["train.algorithm.local_steps=4", "train.algorithm=swarm-sgd"])
    assert other.config.train.algorithm.model_dump(exclude_unset=True) == {"name": "swarm-sgd"}
    assert other.source(("train", "algorithm", "name")) == "--set train.algorithm=swarm-sgd"
    assert (
        load(write(tmp_path), ["train.algorithm.name=d-psgd"]).config.train.algorithm.model_dump()["topology"] == "ring"
    )


def test_everybody_sees_rates_in_the_demo_with_the_cross_sections_of_the_samples_page() -> None:
    page = (ROOT / "samples" / "README.md").read_text(encoding="utf-8")
    demo = load_config("demo")
    found = {demo.classes[each.label]: f"{each.cross_section_pb:,.0f}" for each in demo.samples}
    assert found == dict(re.findall(r"^\| (\S+) \| ([\d,]+) \|", page, flags=re.MULTILINE))
    assert {each.cross_section_pb for each in demo.samples} == set(BUNDLED.values())


@pytest.mark.parametrize("name", sorted({*unmixed_schema().names, *features_schema().names}))
def test_a_pass_through_branch_has_no_name_of_ours(tmp_path: Path, name: str) -> None:
    """`core` and `hlf` stood twice in the kernels' files, which ended the mixing as a bug of ours."""
    assert f"there is a column '{name}' already" in mistakes(tmp_path, ingest={"pass_through": [name]})
