"""`compare --claims`: the page of claims, and the pages in docs that must be those of the stored results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from example_study import example_result, example_run, example_study
from typer.testing import CliRunner

from hep_studies.claims import write_claims
from hep_studies.study_result import PACKED_FILE, pack
from pipeline.cli import app
from pipeline.errors import MissingInputError

CHECKOUT = Path(__file__).parents[2]
STUDIES = CHECKOUT / "docs" / "studies"
STORED = sorted(STUDIES.glob(f"*/{PACKED_FILE}"))
CLAIM = {"says": "It is better.", "better": "ad-psgd", "control": "ar-sgd"}


def stored(folder: Path, correct: int = 900) -> Path:
    """A folder with a packed result."""
    runs = [
        example_run(name, seed, correct=correct) for seed in (1, 2, 3) for name in ("ar-sgd", "sgd")
    ]
    runs += [example_run("ad-psgd", seed, correct=950) for seed in (1, 2, 3)]
    (folder / "example").mkdir(parents=True, exist_ok=True)
    (folder / "example" / PACKED_FILE).write_bytes(
        pack(example_result(example_study(claims=[CLAIM]), runs))
    )
    return folder


@pytest.mark.slow
def test_the_pages_in_docs_are_those_of_the_stored_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {path.parent.name for path in STORED} >= {"thesis-hlf-full", "thesis-scaling"}
    folder = tmp_path / "docs" / "studies"
    for path in (*STORED, *STUDIES.glob("*/metrics.json")):
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        (folder / path.parent.name / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    page = write_claims(Path("docs/studies"), Path("docs")).read_text()
    assert page == (CHECKOUT / "docs" / "claims.md").read_text()
    for path in STORED:
        name = f"{path.parent.name}.md"
        assert (folder / name).read_text() == (STUDIES / name).read_text(), name
    # No page said what was set.
    assert (
        "<summary>What was set</summary>\n\nAll: hlf; "
        in (folder / "thesis-hlf-full.md").read_text()
    )
    # It is for reading: what a researcher takes home, and a line for each claim.
    assert [line[:3] for line in page.splitlines() if re.match(r"\d\. ", line)] == [
        "1. ",
        "2. ",
        "3. ",
        "4. ",
    ]
    assert len(page.split()) <= 3000
    assert int(page.split("Of ")[1].split()[0]) >= 104
    # The central claim of the thesis, which no page decided.
    claims = [line.split("|") for line in page.splitlines() if line.startswith("|At the ")]
    actual = {
        (line[1].split()[2], line[1].rstrip(".").split()[-1]): (
            float(line[3].split()[0]),
            line[5].strip("*"),
        )
        for line in claims
    }
    assert actual["default", "AD-PSGD"] == (pytest.approx(0.0103, abs=1e-4), "confirmed")
    assert actual["default", "SwarmSGD"] == (pytest.approx(0.0103, abs=1e-4), "confirmed")
    assert actual["best", "AD-PSGD"] == (pytest.approx(0.0008, abs=1e-4), "undecided")


def test_the_command_writes_the_page_and_needs_no_config(tmp_path: Path) -> None:
    folder, out = stored(tmp_path / "studies"), tmp_path / "site"
    result = CliRunner().invoke(app, ["compare", "--claims", str(folder), "--publish", str(out)])
    assert result.exit_code == 0, result.output
    page = (out / "claims.md").read_text()
    assert f"`python -m pipeline compare --claims {folder} --publish {out}`" in page
    assert "[A study](../studies/example.md)" in page
    # Sentences to take home are of the shipped studies; they stand only where their claims are judged so.
    assert "\n1. " not in page
    # In a run folder the page of a study stands beside its result.
    (folder / "example" / PACKED_FILE).rename(folder / "example" / f"{PACKED_FILE}.old")
    with pytest.raises(MissingInputError, match=r"there is no \*/result\.json"):
        write_claims(folder, out)
