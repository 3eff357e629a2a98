"""The front page and the pages under docs/: links and make targets exist; the English is plain."""

from __future__ import annotations

import importlib
import json
import lzma
import re
from pathlib import Path

import pytest

from pipeline.config import load_config

CHECKOUT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [
        CHECKOUT / "README.md",
        CHECKOUT / "CONTRIBUTING.md",
        CHECKOUT / "CHANGELOG.md",
        *(CHECKOUT / "docs").rglob("*.md"),
    ]
)
NOTEBOOKS = sorted((CHECKOUT / "docs").rglob("*.ipynb"))


def text_of(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    return "\n".join(
        "".join(cell["source"])
        for cell in json.loads(text)["cells"]
        if cell["cell_type"] == "markdown"
    )


def anchors_of(page: Path) -> set[str]:
    """As GitHub and the site make them of headings of plain words."""
    headings = re.findall(r"^#+ +(.+)$", text_of(page), flags=re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


def links_of(page: Path) -> list[str]:
    without_code = re.sub(r"```.*?```|`[^`\n]*`", "", text_of(page), flags=re.DOTALL)
    return re.findall(r"\]\((?!https?:)([^)\s]+)\)", without_code)


@pytest.mark.parametrize(
    "page", [*PAGES, *NOTEBOOKS], ids=lambda page: str(page.relative_to(CHECKOUT))
)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


def test_a_page_has_links_and_anchors() -> None:
    """Else the test above could not fail."""
    readme = CHECKOUT / "README.md"
    assert "docs/operations.md#watching-it" in links_of(readme)
    assert "watching-it" in anchors_of(CHECKOUT / "docs" / "operations.md")
    assert "watching" not in anchors_of(CHECKOUT / "docs" / "operations.md")


def test_every_page_is_linked_from_the_front_page_and_every_study_from_that_of_studies() -> None:
    pages = (
        CHECKOUT / name for name in ("README.md", "docs/comparison.md", "docs/studies/index.md")
    )
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in pages
        for link in links_of(page)
    }
    assert [
        page for page in (*PAGES, *NOTEBOOKS) if page not in linked and page.name != "README.md"
    ] == []


@pytest.mark.parametrize(
    "path", sorted((CHECKOUT / "docs" / "studies").glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_config_of_published_pages_was_refused(path: Path) -> None:
    """It lacked `classes` since these have no default."""
    assert load_config(str(path)).classes == ["QCD", "ttbar", "W+jets"]


def test_the_front_page_is_short() -> None:
    assert len(text_of(CHECKOUT / "README.md").split()) <= 1000


def test_one_time_is_said_for_make_test() -> None:
    time = re.search(
        r"^TEST_TIME := (.+)$", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert time
    for page in ("README.md", "CONTRIBUTING.md"):
        assert f"({time[1]})" in text_of(CHECKOUT / page), page


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(
        re.findall(
            r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    for page in PAGES:
        named = re.findall(
            r"(?:`|^    )make ([a-z][a-z-]*(?: [a-z-]+)*)", text_of(page), re.MULTILINE
        )
        assert {word for message in named for word in message.split()} <= targets, page


def test_notebooks_are_small_and_ran_without_errors() -> None:
    for notebook in NOTEBOOKS:
        assert notebook.stat().st_size < 300_000
        cells = [
            cell
            for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
            if cell["cell_type"] == "code"
        ]
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
        assert not [
            output
            for cell in cells
            for output in cell["outputs"]
            if output["output_type"] == "error"
        ]


def test_the_english_is_plain() -> None:
    odd = re.compile(
        r"\b(so many|hangs? on|mend(s|ed|ing)?|looks? at|looked at|made from the same|(is|are|was|were) told"
        r"|(goes|go|went|going) on|what is no|has no word for|gets? on for|only then does|not read is|here stands?"
        r"|as far as they are)\b",
        re.IGNORECASE,
    )
    folders = (
        "docs",
        "features",
        "hep_core",
        "hep_simulation",
        "hep_studies",
        "ingestion",
        "models",
        "pipeline",
        "samples",
        "tests",
        "training",
    )
    paths = [path for folder in folders for path in (CHECKOUT / folder).rglob("*")] + [
        CHECKOUT / "Makefile",
        *PAGES,
    ]
    results = [
        (str(path.relative_to(CHECKOUT)), message[0])
        for path in paths
        if path != Path(__file__)
        and (path.suffix in {".html", ".md", ".py", ".sh", ".yaml"} or path.name == "Makefile")
        for message in odd.finditer(path.read_text(encoding="utf-8").replace("_", " "))
    ]
    assert results == []


def test_examples_import_only_what_is_public() -> None:
    examples = [
        *(CHECKOUT / "docs").glob("**/*.md"),
        *(CHECKOUT / "docs" / "examples").glob("**/*.py"),
    ]
    pattern = r"^\s*from (hep_core|pipeline|ingestion|features|models|training)\.(\w+)"
    used = {
        actual for path in examples for actual in re.findall(pattern, text_of(path), re.MULTILINE)
    }
    assert ("training", "algorithms") in used
    assert {
        (package, name)
        for package, name in used
        if name not in importlib.import_module(package).__all__
    } == set()


def test_no_page_of_a_study_named_the_folder_of_the_machine_that_made_it() -> None:
    for result in (CHECKOUT / "docs" / "studies").glob("*/result.json.xz"):
        assert not re.search(r"--config /", lzma.decompress(result.read_bytes()).decode()), result
    assert [
        page for page in PAGES if re.search(r"compare --study \S+ .*--config /", text_of(page))
    ] == []
