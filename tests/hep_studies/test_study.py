"""Study files: those that come with the code are right, and mistakes are said with the nearest name."""

from __future__ import annotations

import json
import re
import textwrap
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from example_study import STUDY, example_study
from pydantic import ValidationError
from rich.console import Console

from hep_studies.nested_values import form_of
from hep_studies.study import FOLDER
from hep_studies.study_files import FORMS, list_studies, read_study, shipped_studies
from hep_studies.study_sections import Claim
from hep_studies.workloads.surface_settings import SurfaceSettings
from pipeline.errors import ConfigError
from training.loop.schedule import learning_rate

CHECKOUT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
def test_every_study_has_what_a_referee_asks_for(name: str, form: str) -> None:
    study = read_study(name, form).settings
    assert study.claims, "a study checks sentences of its source"
    assert study.figures or study.tables
    assert study.seeds >= 3
    assert form == "full" or study.minutes <= 15
    assert study.single_worker is not None, "sequential SGD is a control"
    if study.times_only is None and not isinstance(study.workload, SurfaceSettings):
        slow = [
            study.train_settings(name, next(study.combinations(name)), 1) for name in study.methods
        ]
        assert any(
            method.slowmo is not None and method.algorithm.name == "ar-sgd" for method in slow
        )
        # Each method at its own best rate, or every rate of its own; a large network has no time for that in minutes.
        assert len(study.vary["train.learning_rate"]) >= (
            3 if form == "full" or study.minutes < 10 else 1
        )
        assert study.best_of in ([], ["train.learning_rate"])


def test_the_rate_of_resnet_falls_with_the_first_steps_of_epochs_81_and_121() -> None:
    study = read_study("thesis-cifar", "full").settings
    settings = study.train_settings("ad-psgd", {"train.learning_rate": 0.1}, 1)
    rates = [learning_rate(settings, result) for result in (80, 80.01, 120, 120.01)]
    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.001])


def test_the_list_of_tables_and_figures_has_every_study_and_the_site_every_page() -> None:
    listed = (CHECKOUT / "docs" / "studies" / "index.md").read_text()
    assert [name for name in NAMES if name not in listed] == []
    navigation = (CHECKOUT / "mkdocs.yml").read_text()
    pages = {f"studies/{path.name}" for path in (CHECKOUT / "docs" / "studies").glob("*.md")}
    assert set(re.findall(r"studies/\S+\.md", navigation)) == pages


@pytest.mark.slow
def test_the_list_was_wider_than_a_terminal_and_had_every_study_twice() -> None:
    console = Console(width=80, record=True, file=StringIO())
    console.print(list_studies())
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line[:1].isalpha()][1:] == NAMES
    assert "figure 4.9" in " ".join(" ".join(lines).split())


def promised() -> dict[str, str]:
    """The study of each table and figure by its name, as docs/studies/index.md has them."""
    listed = (CHECKOUT / "docs" / "studies" / "index.md").read_text()
    actual = {}
    for description, study, source in re.findall(
        r"^\| (.*?) \| [\[`]((\w+)-[\w-]+)", listed, re.MULTILINE
    ):
        for kind_name, numbers in re.findall(
            r"(table|figure)s? ((?:\d[\d.]*[a-z]?(?:, | to )?)+)", description
        ):
            for index in (
                re.sub(r"(\d+\.)(\d+) to \1(\d+)", every, numbers).rstrip(", ").split(", ")
            ):
                actual[f"{source}-{kind_name}-{index.replace('.', '-')}"] = study
    return actual


def every(span: re.Match[str]) -> str:
    """The numbers of a span such as `3.7 to 3.13`."""
    return ", ".join(f"{span[1]}{index}" for index in range(int(span[2]), int(span[3]) + 1))


def test_each_table_and_figure_of_the_list_is_a_name_of_its_study() -> None:
    assert read_study("thesis-table-4-2", "small").name == "thesis-hlf"
    names = {
        name: path.stem
        for name, path in shipped_studies().items()
        if re.search("-(table|figure)-", name)
    }
    assert names == promised()
    assert names["hermans-figure-3-11"] == "hermans-grid"


WORKERS, FOUR = {"train.workers": [2, 4]}, {"train.workers": 4}
PAIR = {"better": "sgd", "control": "ar-sgd"}
FIGURE = {"name": "x", "title": "x"}
BEST = {"protocol": "each at its best"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"refrence": "sgd"}, "unknown key 'refrence'. Did you mean 'reference'?"),
        (
            {"train": {"epoch": 3}},
            "ar-sgd, train.learning_rate 0.001 .*\n.*'epoch'. Did you mean 'epochs'",
        ),
        ({"reference": "ar-sdg"}, "no method 'ar-sdg', only .* Did you mean 'ar-sgd'"),
        (
            {"vary": {"train.learning_rte": [0.1]}},
            "train.learning_rte 0.1 .*\n.*Did you mean 'learning_rate'",
        ),
        (
            {"best_of": ["train.learning_rates"]},
            "no varied key .* Did you mean 'train.learning_rate'",
        ),
        (
            {"methods": {"sgd": {"vary": {"train.learning_rates": [1]}}}},
            "Did you mean 'train.learning_rate'",
        ),
        (
            {"methods": {"sgd": {"vary": {"train.learning_rate": []}}}},
            "'train.learning_rate' .* has no values",
        ),
        ({"claims": [{"says": "x", "better": "sgd"}]}, "better and equivalent need `control`"),
        ({"claims": [{"says": "x", **PAIR, "margin": 0.1}]}, "a margin needs `because`"),
        (
            {"claims": [{"says": "x", **PAIR, **BEST, "at": {"train.learning_rate": 0.1}}]},
            "has other keys in `at`",
        ),
        (
            {
                "claims": [
                    {
                        "says": "x",
                        **PAIR,
                        **BEST,
                        "control": {"method": "sgd", "train.learning_rate": 7},
                    }
                ]
            },
            "7 is none of",
        ),
        # They were judged as if the claim did not name the rate.
        (
            {
                "claims": [
                    {
                        "says": "x",
                        **PAIR,
                        **BEST,
                        "control": {"method": "ar-sgd", "train.learning_rate": 0.003},
                    }
                ]
            },
            "train.learning_rate is at its best, or as `at` says",
        ),
        (
            {"tables": [{"title": "x", "measures": ["seconds"], "over": "method"}]},
            "no varied key 'method'",
        ),
        # `compare --workers` set a value that every method replaced.
        (
            {"train": {"learning_rate": 1.0}},
            "compare.train.learning_rate has no effect on .*thesis-hlf.yaml: every",
        ),
        ({"cluster": {"slow_ranks": {40: 2.0}}}, "there is no slow rank 40 among"),
        ({"cluster": {"latency": 1}}, "unknown key 'latency'"),
        ({"figures": [{**FIGURE, "panels": [{"y": "val_acc", "x": "epoch"}]}]}, "'val_accuracy'"),
        (
            {
                "figures": [
                    {**FIGURE, "panels": [{"y": "val_loss", "x": "epoch", "where": {"a": 1}}]}
                ]
            },
            "no varied",
        ),
        ({"times_only": 4}, "times_only needs execution: simulate, and has no best_of"),
    ],
)
def test_mistakes_are_said_with_the_nearest_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_study("thesis-hlf", "small", changes)


def test_the_example_of_the_docs_is_a_study(tmp_path: Path) -> None:
    page = (CHECKOUT / "docs" / "comparison.md").read_text()
    example = page.partition("## A study of your own")[2].partition("\nA method")[0]
    (tmp_path / "mine.yaml").write_text(textwrap.dedent(example))
    study = read_study(str(tmp_path / "mine.yaml"), "small").settings
    assert [len(list(study.combinations(name))) for name in study.methods] == [2, 2]


def test_an_unknown_study_is_refused_with_the_nearest() -> None:
    for name, form, message in (
        ("thesis", "small", r"no such study\. Did you mean 'thesis-hlf'"),
        ("my.yaml", "small", r"no such file\. `compare --list` shows"),
        ("thesis-hlf", "fill", r"no such form\. Did you mean 'full'"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_study(name, form)


def test_a_form_and_the_command_line_replace_values_and_keep_the_rest() -> None:
    document = {
        "train": {"epochs": 3, "algorithm": {"name": "x", "tau": 2}},
        "forms": {"full": {"train": {"epochs": 9}}},
    }
    changed = form_of(document, "full", {"train": {"algorithm": {"tau": 5}}})
    assert changed == {"train": {"epochs": 9, "algorithm": {"name": "x", "tau": 5}}}
    # Another method has other keys.
    second = form_of(document, "small", {"train": {"algorithm": {"name": "y"}}})
    assert second["train"] == {"epochs": 3, "algorithm": {"name": "y"}}


def test_every_combination_of_the_varied_keys_that_a_method_has_is_run() -> None:
    methods = {
        **STUDY["methods"],
        "fixed": {**STUDY["methods"]["ar-sgd"], "fixed": ["cluster.slow_ranks"]},
    }
    vary = {"train.workers": [2, 4], "cluster.slow_ranks": [{}, {0: 10.0}]}
    study = example_study(methods=methods, vary=vary)
    assert len(list(study.combinations("ar-sgd"))) == 4
    # A method that sets a key itself does not vary it.
    assert [list(combination) for combination in study.combinations("sgd")] == [
        ["cluster.slow_ranks"]
    ] * 2
    assert [list(combination) for combination in study.combinations("fixed")] == [
        ["train.workers"]
    ] * 2
    values = {"train.workers": 2, "cluster.slow_ranks": {0: 10.0}}
    settings = study.train_settings("ar-sgd", values, 7)
    assert (settings.workers, settings.seed) == (2, 7)
    assert study.single_worker == "sgd"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"workers": 4, "seed": 3}}, "seed: no effect in a study"),
        ({"vary": {"train.threads": [1, 2]}}, "train.threads: no effect in a study"),
        (
            {"vary": {"cluster.jitter": [0.1, 0.2]}, "execution": "mpi"},
            "cluster.jitter has no effect with execution",
        ),
        # Of a method that sets the key itself, a claim had no run.
        (
            {
                "vary": WORKERS,
                "claims": [{"says": "x", **PAIR, "better": {"method": "sgd", **FOUR}}],
            },
            "4 is none of the",
        ),
    ],
    ids=str,
)
def test_a_key_without_effect_in_a_study_made_equal_cells(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        example_study(**changes)


def test_a_varied_value_that_is_listed_twice_is_run_once() -> None:
    study = example_study(
        vary={"train.workers": [2, 4, 2], "cluster.slow_ranks": [{}, {"0": 10.0}, {}]}
    )
    assert study.vary == {"train.workers": [2, 4], "cluster.slow_ranks": [{}, {"0": 10.0}]}


STUDY_FILE = "title: A\nsource: B 2020\nminutes: 1\nreference: sgd\nmethods: {sgd: {train: {algorithm: sgd}}}\n"
MPI: dict[str, Any] = {"execution": "mpi"}
CLUSTER = {"cluster": {"step_seconds": 1}}


def write_study(folder: Path, document: dict[str, Any]) -> str:
    """The path of a small study with further keys."""
    path = folder / "mine.yaml"
    further_keys = [f"{key}: {json.dumps(value)}\n" for key, value in document.items()]
    path.write_text(STUDY_FILE + "".join(further_keys))
    return str(path)


@pytest.mark.parametrize(
    ("document", "form", "changes", "name"),
    [
        ({}, "small", {}, "mine"),
        ({}, "small", MPI, "mine-mpi"),
        ({}, "full", MPI, "mine-full-mpi"),
        ({"forms": {"small": MPI}}, "small", {}, "mine-mpi"),
        ({"forms": {"small": MPI}}, "small", {"execution": "simulate"}, "mine"),
        (CLUSTER, "small", MPI, "mine-mpi"),
        ({**CLUSTER, "forms": {"small": MPI}}, "small", {}, "mine-mpi"),
    ],
    ids=str,
)
def test_the_form_and_the_execution_are_part_of_the_name(
    tmp_path: Path, document: dict[str, Any], form: str, changes: dict[str, Any], name: str
) -> None:
    """Results by MPI once replaced those of the simulator."""
    path = write_study(tmp_path, document)

    assert read_study(path, form, changes).name == name


@pytest.mark.parametrize(
    ("document", "changes"),
    [({"forms": {"small": {**MPI, **CLUSTER}}}, {}), (MPI, CLUSTER)],
    ids=str,
)
def test_a_cluster_beside_mpi_is_refused(
    tmp_path: Path, document: dict[str, Any], changes: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="cluster has no effect"):
        read_study(write_study(tmp_path, document), "small", changes)


def test_the_old_name_of_the_control_is_still_read() -> None:
    pair = {"says": "x", "better": "sgd"}

    old = Claim.model_validate({**pair, "than": "ar-sgd"})

    assert old == Claim.model_validate({**pair, "control": "ar-sgd"})
    with pytest.raises(ValidationError, match="`than` is the old name of `control`"):
        Claim.model_validate({**pair, "than": "ar-sgd", "control": "ar-sgd"})
