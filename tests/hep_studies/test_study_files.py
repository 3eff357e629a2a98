"""The files of studies: the shipped ones are right, and mistakes are said with the nearest name."""

from __future__ import annotations

import json
import re
import textwrap
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from example_study import EQUAL_ACCURACY, SMALL_STUDY, write_study
from rich.console import Console

from hep_studies.study import FOLDER, StudySettings
from hep_studies.study_files import FORMS, list_studies, read_study, shipped_studies
from hep_studies.workloads.surface_settings import SurfaceSettings
from pipeline.errors import ConfigError
from training.loop.schedule import learning_rate

CHECKOUT = Path(__file__).parents[2]
STUDY_PAGES = CHECKOUT / "docs" / "studies"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
RATE = "train.learning_rate"


@pytest.fixture(params=[(name, form) for name in NAMES for form in FORMS], ids="-".join)
def shipped_study(request: pytest.FixtureRequest) -> tuple[str, StudySettings]:
    """A form and its study."""
    name, form = request.param
    return form, read_study(name, form).settings


def test_every_study_has_claims_seeds_and_a_single_worker(
    shipped_study: tuple[str, StudySettings],
) -> None:
    form, study = shipped_study

    assert study.claims
    assert study.figures or study.tables
    assert study.seeds >= 3
    assert form == "full" or study.minutes <= 90
    assert study.single_worker is not None


def test_every_study_of_learning_has_slow_momentum_and_a_sweep_of_rates(
    shipped_study: tuple[str, StudySettings],
) -> None:
    form, study = shipped_study
    if study.times_only is not None or isinstance(study.workload, SurfaceSettings):
        pytest.skip("nothing is learnt")

    settings = [study.first_settings(method) for method in study.methods]

    assert any(train.slowmo and train.algorithm.name == "ar-sgd" for train in settings)
    assert study.best_of in ([], [RATE])
    # A large network has no time for a sweep within minutes.
    has_time = form == "full" or study.minutes < 10
    assert len(study.vary[RATE]) >= (3 if has_time else 1)


def test_the_rate_of_resnet_falls_with_the_first_steps_of_epochs_81_and_121() -> None:
    study = read_study("thesis-cifar", "full").settings
    settings = study.train_settings("ad-psgd", {RATE: 0.1}, 1)

    rates = [learning_rate(settings, epochs) for epochs in (80, 80.01, 120, 120.01)]

    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.001])


def test_the_index_has_every_study_and_the_site_every_page() -> None:
    index = (STUDY_PAGES / "index.md").read_text()
    navigation = (CHECKOUT / "mkdocs.yml").read_text()

    assert [name for name in NAMES if name not in index] == []
    pages = {f"studies/{path.name}" for path in STUDY_PAGES.glob("*.md")}
    assert set(re.findall(r"studies/\S+\.md", navigation)) == pages


@pytest.mark.slow
def test_the_list_of_studies_fits_a_terminal_and_has_each_study_once() -> None:
    console = Console(width=80, record=True, file=StringIO())

    console.print(list_studies())

    lines = console.export_text().splitlines()
    assert max(len(line) for line in lines) <= 80
    first_words = [line.split()[0] for line in lines if line[:1].isalpha()]
    assert first_words[1:] == NAMES
    assert "figure 4.9" in " ".join(" ".join(lines).split())


def expand_span(span: re.Match[str]) -> str:
    """The numbers of a span such as `3.7 to 3.13`."""
    chapter, first, last = span.groups()
    return ", ".join(f"{chapter}{number}" for number in range(int(first), int(last) + 1))


def studies_of_index() -> dict[str, str]:
    """The study of each table and figure by its name, as the index of the pages has them."""
    index = (STUDY_PAGES / "index.md").read_text()
    studies = {}
    rows = re.findall(r"^\| (.*?) \| [\[`]((\w+)-[\w-]+)", index, re.MULTILINE)
    for description, study, source in rows:
        listed = re.findall(r"(table|figure)s? ((?:\d[\d.]*[a-z]?(?:, | to )?)+)", description)
        for exhibit, numbers in listed:
            single_numbers = re.sub(r"(\d+\.)(\d+) to \1(\d+)", expand_span, numbers)
            for number in single_numbers.rstrip(", ").split(", "):
                studies[f"{source}-{exhibit}-{number.replace('.', '-')}"] = study
    return studies


def test_each_table_and_figure_of_the_index_is_a_name_of_its_study() -> None:
    names = {
        name: path.stem
        for name, path in shipped_studies().items()
        if re.search("-(table|figure)-", name)
    }

    assert names == studies_of_index()
    assert names["hermans-figure-3-11"] == "hermans-grid"
    assert read_study("thesis-table-4-2", "small").name == "thesis-hlf"


PAIR = {"says": "x", "better": "sgd", "control": "ar-sgd", **EQUAL_ACCURACY}
AT_BEST = {**PAIR, "protocol": "each at its best"}


def claim(**changes: Any) -> dict[str, Any]:
    """A study with one claim."""
    return {"claims": [{**AT_BEST, **changes}]}


def panel(**changes: Any) -> dict[str, Any]:
    """A study with one figure of one panel."""
    panels = [{"y": "val_loss", "x": "epoch", **changes}]
    return {"figures": [{"name": "x", "title": "x", "panels": panels}]}


def sgd(**changes: Any) -> dict[str, Any]:
    """A study with changes of its method sgd."""
    return {"methods": {"sgd": changes}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"refrence": "sgd"}, "unknown key 'refrence'. Did you mean 'reference'?"),
        ({"train": {"epoch": 3}}, "ar-sgd, train.learning_rate 0.001 .*\n.*Did you mean 'epochs'"),
        ({"reference": "ar-sdg"}, "no method 'ar-sdg', only .* Did you mean 'ar-sgd'"),
        (
            {"vary": {"train.learning_rte": [0.1]}},
            "train.learning_rte 0.1 .*\n.*Did you mean 'learning_rate'",
        ),
        (
            {"best_of": ["train.learning_rates"]},
            "no varied key .* Did you mean 'train.learning_rate'",
        ),
        (sgd(vary={"train.learning_rates": [1]}), "Did you mean 'train.learning_rate'"),
        (sgd(vary={RATE: []}), "'train.learning_rate' .* has no values"),
        (
            {"claims": [{"says": "x", "better": "sgd", **EQUAL_ACCURACY}]},
            "better and equivalent need `control`",
        ),
        (claim(margin=0.1), "a margin needs `because`"),
        (claim(at={RATE: 0.1}), "has other keys in `at`"),
        (claim(control={"method": "sgd", RATE: 7}), "7 is none of"),
        (
            claim(control={"method": "ar-sgd", RATE: 0.003}),
            "train.learning_rate is at its best, or as `at` says",
        ),
        (
            {"tables": [{"title": "x", "measures": ["seconds"], "over": "method"}]},
            "no varied key 'method'",
        ),
        # Every method of this study replaces the value.
        (
            {"train": {"learning_rate": 1.0}},
            "compare.train.learning_rate has no effect on .*thesis-hlf.yaml: every",
        ),
        ({"cluster": {"slow_ranks": {40: 2.0}}}, "there is no slow rank 40 among"),
        ({"cluster": {"latency": 1}}, "unknown key 'cluster.latency'"),
        (panel(y="val_acc"), "'val_accuracy'"),
        # The list of all measures is long; the advice behind it stays.
        (claim(measure="secnds"), "no measure 'secnds', only .* Did you mean 'seconds'"),
        (panel(where={"a": 1}), "no varied"),
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

    assert [len(list(study.combinations(method))) for method in study.methods] == [2, 2]


@pytest.mark.parametrize(
    ("name", "form", "message"),
    [
        ("thesis", "small", r"no such study\. Did you mean 'thesis-hlf'"),
        ("my.yaml", "small", r"no such file\. `compare --list` shows"),
        ("thesis-hlf", "fill", r"no such form\. Did you mean 'full'"),
    ],
)
def test_an_unknown_study_is_refused_with_the_nearest(name: str, form: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_study(name, form)


MPI: dict[str, Any] = {"execution": "mpi"}
CLUSTER = {"cluster": {"step_seconds": 1}}


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


def test_a_form_that_the_file_does_not_name_may_be_incomplete(tmp_path: Path) -> None:
    keys = {key: value for key, value in SMALL_STUDY.items() if key != "minutes"}
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps({**keys, "forms": {"small": {"seeds": 2, "minutes": 1}}}))

    assert read_study(str(path), "small").settings.seeds == 2
    with pytest.raises(ConfigError, match="'minutes' is missing"):
        read_study(str(path), "full")
