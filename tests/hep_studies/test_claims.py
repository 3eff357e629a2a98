"""`compare --claims`: the page of claims, and the pages in docs that must be those of the stored
results."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_study import EQUAL_ACCURACY, STUDY, example_result, example_run, example_study
from typer.testing import CliRunner

from hep_studies.claims import write_claims
from hep_studies.judging import JudgedClaim, judge
from hep_studies.study_files import read_study
from hep_studies.study_result import PACKED_FILE, pack, read_study_result
from pipeline.cli import app
from pipeline.errors import MissingInputError

CHECKOUT = Path(__file__).parents[2]
STUDIES = CHECKOUT / "docs" / "studies"
STORED = sorted(STUDIES.glob(f"*/{PACKED_FILE}"))
CLAIM = {"says": "It is better.", "better": "ad-psgd", "control": "ar-sgd", **EQUAL_ACCURACY}


@pytest.fixture(scope="module")
def written_pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pages that the stored results of docs give."""
    root = tmp_path_factory.mktemp("checkout")
    for path in (*STORED, *STUDIES.glob("*/metrics.json")):
        folder = root / "docs" / "studies" / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).symlink_to(path)
    with pytest.MonkeyPatch.context() as patch:
        # The page has the command, with these folders.
        patch.chdir(root)
        write_claims(Path("docs/studies"), Path("docs"))
    return root / "docs"


@pytest.mark.slow
def test_the_pages_in_docs_are_those_of_the_stored_results(written_pages: Path) -> None:
    names = [path.parent.name for path in STORED]

    assert {"thesis-hlf-full", "thesis-scaling"} <= set(names)
    for name in ("claims.md", "choosing.md"):
        assert (written_pages / name).read_text() == (CHECKOUT / "docs" / name).read_text(), name
    for name in names:
        page = (written_pages / "studies" / f"{name}.md").read_text()
        assert page == (STUDIES / f"{name}.md").read_text(), name


def test_the_page_of_claims_begins_with_up_to_five_sentences_to_take_home() -> None:
    page = (CHECKOUT / "docs" / "claims.md").read_text()

    numbers = re.findall(r"^(\d)\. ", page, re.MULTILINE)

    assert numbers in (["1", "2", "3"], ["1", "2", "3", "4"], ["1", "2", "3", "4", "5"])
    assert len(page.split()) <= 8000


@pytest.fixture(scope="module")
def rows_of_the_thesis() -> dict[str, JudgedClaim]:
    """The rows of the thesis' table 4.2 by name, judged by the stored runs."""
    result = read_study_result(STUDIES / "thesis-hlf-full" / PACKED_FILE)
    settings = read_study("thesis-hlf", "full").settings
    return {judged.claim.name: judged for judged in judge(replace(result, study=settings))}


@pytest.mark.parametrize(
    ("name", "effect", "verdict"),
    [
        # In the source's measure, at the same rate: the size is open, for want of test events.
        ("ad-table", 0.0057, "undecided"),
        ("swarm-table", 0.0059, "undecided"),
        ("ad-default", 0.0106, "confirmed"),
        ("swarm-default", 0.0106, "confirmed"),
    ],
)
def test_the_central_claim_of_the_thesis_has_a_verdict(
    rows_of_the_thesis: dict[str, JudgedClaim], name: str, effect: float, verdict: str
) -> None:
    judged = rows_of_the_thesis[name]

    assert judged.decisive is not None
    assert judged.decisive.difference.mean == pytest.approx(effect, abs=1e-4)
    assert judged.verdict == verdict


@pytest.fixture
def stored_study(tmp_path: Path) -> Path:
    """A folder with a packed result."""
    correct = {"ar-sgd": 900, "sgd": 900, "ad-psgd": 950}
    runs = [
        example_run(method, seed, correct=num_correct)
        for seed in (1, 2, 3)
        for method, num_correct in correct.items()
    ]
    folder = tmp_path / "studies" / "example"
    folder.mkdir(parents=True)
    result = example_result(example_study(claims=[CLAIM], seeds=3), runs)
    (folder / PACKED_FILE).write_bytes(pack(result))
    return folder.parent


def test_the_command_writes_the_page_and_needs_no_config(
    stored_study: Path, tmp_path: Path
) -> None:
    out = tmp_path / "site"

    done = CliRunner().invoke(
        app, ["compare", "--claims", str(stored_study), "--publish", str(out)]
    )

    assert done.exit_code == 0, done.output
    page = (out / "claims.md").read_text()
    assert f"`python -m pipeline compare --claims {stored_study} --publish {out}`" in page
    assert "[A study](../studies/example.md)" in page
    # The sentences to take home stand only where their claims are judged so.
    assert "\n1. " not in page


@pytest.mark.parametrize(
    ("changes", "is_judged_by_file"),
    [
        ({}, True),
        ({"seeds": 5}, True),
        ({"methods": {**STUDY["methods"], "late": STUDY["methods"]["sgd"]}}, True),
        ({"seeds": 1}, False),
        ({"train": {"workers": 8}}, False),
        ({"cluster": {"step_seconds": 1.0}}, False),
        ({"methods": {"ar-sgd": STUDY["methods"]["ar-sgd"]}}, False),
    ],
    ids=str,
)
def test_claims_are_those_of_the_file_while_it_asks_for_the_stored_runs(
    stored_study: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    is_judged_by_file: bool,
) -> None:
    rows = [{**CLAIM, "says": "The file says so.", "control": "sgd"}] if is_judged_by_file else []
    file = {**STUDY, "seeds": 3, **changes, "claims": rows}
    (tmp_path / "example.yaml").write_text(json.dumps(file))
    monkeypatch.setattr("hep_studies.claims.FOLDER", tmp_path)

    page = write_claims(stored_study, tmp_path / "site").read_text()

    assert ("The file says so." in page) == is_judged_by_file
    assert ("It is better." in page) != is_judged_by_file


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"there is no \*/result\.json"):
        write_claims(tmp_path, tmp_path)
