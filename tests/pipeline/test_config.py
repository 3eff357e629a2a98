"""The config: defaults, shipped configs, and messages about mistakes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from minimal_configs import MINIMAL, config_mistakes, write_config

from features.settings import FeatureSettings
from ingestion.settings import IngestSettings
from pipeline.config import SHIPPED, find_config, load_config
from pipeline.errors import ConfigError
from pipeline.reporting.origin import BUNDLED
from pipeline.runs.code_meaning import ROOT


def test_a_minimal_config_has_all_defaults(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path))

    assert config.features == FeatureSettings()
    assert config.ingest == IngestSettings()
    assert config.classes == ["QCD", "ttbar", "W+jets"]


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_are_valid_and_comment_every_key(path: Path) -> None:
    assert load_config(path.stem)

    previous_line = ""
    is_in_samples = False
    for line in path.read_text().splitlines():
        if not line.strip():
            continue
        if not line.startswith((" ", "#")):
            is_in_samples = line.startswith("samples:")
        key, separator, value = line.strip().partition(":")
        is_setting = separator and value and not key.startswith(("#", "-"))
        if is_setting and not is_in_samples:
            assert previous_line.strip().startswith("#"), f"{key} has no comment"
        previous_line = line


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

    path = tmp_path / "c.yaml"
    path.write_text("run_dir: x\n")
    with pytest.raises(ConfigError, match=r"(?s)'classes' is missing.*'samples' is missing"):
        load_config(str(path))


def test_all_contradictions_are_listed_at_once(tmp_path: Path) -> None:
    message = config_mistakes(
        tmp_path,
        classes=["QCD", "ttbar", "W+jets", "Z"],
        features={"min_lepton_pt": 10},
        evaluate={"signal": "ttbra", "luminosity": 1e34},
    )

    first, *lines = message.splitlines()
    assert first.endswith("has 4 mistakes:")
    phrases = ["class 'Z'", "'ttbra'", "min_lepton_pt", "luminosity: 1e+34 has no"]
    for line, phrase in zip(lines, phrases, strict=True):
        assert phrase in line


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
    path = write_config(tmp_path, train={"seed": 2**32 - 2}, train_by_network={"hlf": {"seeds": 3}})
    config = load_config(path)

    trainings = config.trainings_of("hlf")

    assert list(trainings) == ["hlf", "hlf-seed-4294967295", "hlf-seed-0"]
    first, *further = trainings.values()
    assert first == config.training_of("hlf")
    assert further == [first.model_copy(update={"seed": seed}) for seed in (2**32 - 1, 0)]
    assert list(config.trainings_of("particles")) == ["particles"]
    # Their number changes no training, so more seeds leave the first trainings as they are.
    assert first.result_items() == config.training_of("particles").result_items()


@pytest.mark.parametrize(
    ("text", "message"),
    [("- a\n- b\n", "must hold keys and values"), ("a: [1", "no valid YAML")],
)
def test_files_that_are_no_config_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=message):
        load_config(str(path))


def test_an_unknown_name_of_a_config_has_the_nearest() -> None:
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
            "unknown key 'train.algorithm.overlap'. 'overlap' is a key of sgp, sharded, streaming-diloco",
        ),
        (["train.algorithm={name: local-sgd, local_step: 4}"], "Did you mean 'local_steps'?"),
        (["train.algorithm={topology: ring}"], "'train.algorithm.name' is missing."),
        (
            ["train_by_network={particles: {overlap: inline}}"],
            (
                "train_by_network.particles: unknown key 'overlap'. 'algorithm.overlap' is a key of "
                "sgp, sharded, streaming-diloco"
            ),
        ),
    ],
)
def test_a_wrong_choice_names_the_nearest_and_the_method_that_has_the_key(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    assert message in config_mistakes(tmp_path, *overrides)


def test_the_demo_has_the_cross_sections_of_the_page_of_its_samples() -> None:
    page = (ROOT / "samples" / "README.md").read_text(encoding="utf-8")
    of_page = dict(re.findall(r"^\| (\S+) \| ([\d,]+) \|", page, flags=re.MULTILINE))

    demo = load_config("demo")

    of_demo = {
        demo.classes[sample.label]: f"{sample.cross_section_pb:,.0f}" for sample in demo.samples
    }
    assert of_demo == of_page
    assert {sample.cross_section_pb for sample in demo.samples} == set(BUNDLED.values())


def test_a_weight_of_a_sample_is_one_of_all_samples(tmp_path: Path) -> None:
    samples = [
        {"name": "qcd", "label": 0, "files": ["q.root"], "weights": {"scale_upp": "none"}},
        {"name": "ttbar", "label": 1, "files": ["t.root"]},
        {"name": "wjets", "label": 2, "files": ["w.root"], "weights": {"scale_up": "none"}},
    ]
    weights = {"weights": {"scale_up": "LHEWeight[1]"}}

    message = config_mistakes(tmp_path, samples=samples, ingest=weights)

    assert "has 1 mistake" in message
    assert (
        "'qcd' has the weight 'scale_upp', which is none of ingest.weights. Did you mean "
        "'scale_up'?" in message
    )
