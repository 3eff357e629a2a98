"""`compare --claims`: the page of claims, and the pages in docs that must be those of the stored results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_study import made_result, made_run, made_study
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.commands.claims import claims_page, write_claims
from pipeline.errors import MissingInputError
from training.studies import study_page
from training.studies.study_result import PACKED, pack, read

CHECKOUT = Path(__file__).parents[3]
STUDIES = CHECKOUT / "docs" / "studies"
STORED = sorted(STUDIES.glob(f"*/{PACKED}"))
CLAIM = {"claim": "It is better.", "topic": "Accuracy", "better": "ad-psgd", "than": "ar-sgd"}
SMALL = {"value": 0.01, "error": 0.02}


def stored(folder: Path, correct: int = 900) -> Path:
    """A folder with a packed result."""
    runs = [made_run(name, seed, correct=correct) for seed in (1, 2, 3) for name in ("ar-sgd", "sgd")]
    runs += [made_run("ad-psgd", seed, correct=950) for seed in (1, 2, 3)]
    (folder / "made").mkdir(parents=True, exist_ok=True)
    (folder / "made" / PACKED).write_bytes(pack(made_result(made_study(claims=[CLAIM]), runs)))
    return folder


@pytest.mark.slow
def test_the_pages_in_docs_are_those_of_the_stored_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    assert {path.parent.name for path in STORED} >= {"thesis-hlf", "thesis-scaling"}
    assert claims_page(Path("docs/studies"), Path("docs")) == (CHECKOUT / "docs" / "claims.md").read_text()
    for path in STORED:
        page = STUDIES / f"{path.parent.name}.md"
        assert study_page.render(read(path), folder=path.parent.name) == page.read_text(), page


def test_pages_of_published_studies_are_written_anew(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    write_claims(folder, tmp_path / "out")
    assert (folder / "made.md").read_text() == study_page.render(read(folder / "made" / PACKED), folder="made")


def test_another_result_gives_another_page(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    pages = [claims_page(stored(tmp_path, correct), tmp_path) for correct in (900, 901)]
    assert "+5.00 points" in pages[0]
    assert "+4.90 points" in pages[1]


def test_the_command_writes_the_page_and_needs_no_config(tmp_path: Path) -> None:
    folder, out = stored(tmp_path / "studies"), tmp_path / "site"
    done = CliRunner().invoke(app, ["compare", "--claims", str(folder), "--publish", str(out)])
    assert done.exit_code == 0, done.output
    page = (out / "claims.md").read_text()
    assert f"`python -m pipeline compare --claims {folder} --publish {out}`" in page
    assert "| [made](../studies/made.md) | It is better. |" in page
    # In a run folder the page of a study stands beside its result.
    (folder / "made" / PACKED).rename(folder / "made" / f"{PACKED}.old")
    with pytest.raises(MissingInputError, match=r"there is no \*/result\.json"):
        claims_page(folder, out)


def test_classifiers_of_an_evaluation_stand_behind_the_best(tmp_path: Path) -> None:
    point: dict[str, Any] = {"wanted": 0.9, "measurable": True, "threshold": 0.5, "purity": None}
    left = {"low": 0.1, "value": 0.2, "high": 0.4}
    run = {
        "accuracy": SMALL,
        "auc": {"QCD": SMALL, "ttbar": SMALL},
        "events_per_class": {"QCD": 40, "ttbar": 60},
        "working_points": [{**point, "backgrounds": {"QCD": left}}],
    }
    behind = {"hlf": {"value": 0.05, "error": 0.02}, "trees": {"value": 0.03, "error": 0.02}}
    metrics = {
        "classes": ["QCD", "ttbar"],
        "signal": "ttbar",
        "mixture": {"words": "100 % QCD"},
        "num_events": 100,
        "rates_before": None,
        "best": "particles",
        "behind_best": {"particles": {"value": 0.0, "error": 0.0}, **behind},
        "runs": dict.fromkeys(("particles", "hlf", "trees"), run),
    }
    folder = stored(tmp_path)
    (folder / "networks").mkdir()
    (folder / "networks" / "metrics.json").write_text(json.dumps(metrics))
    page = claims_page(folder, tmp_path)
    assert "100 test events: QCD 40, ttbar 60. Largest area" in page
    assert "| hlf | 0.0500 ± 0.0200 | yes |\n| trees | 0.0300 ± 0.0200 | no |" in page
    assert "| particles | 0.010 ± 0.020 | 0.010 ± 0.020 | 0.010 ± 0.020 |" in page
    assert "| particles | 90% | 0.5000 | 20 +20 -10 |" in page
