"""The front page and the pages under docs/: links and make targets exist; the English is plain."""

from __future__ import annotations

import importlib
import json
import lzma
import re
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from pipeline.config import load_config

CHECKOUT = Path(__file__).resolve().parents[1]
MAKEFILE = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
PAGES = sorted(
    [
        CHECKOUT / "README.md",
        CHECKOUT / "CONTRIBUTING.md",
        CHECKOUT / "CHANGELOG.md",
        *(CHECKOUT / "docs").rglob("*.md"),
    ]
)
NOTEBOOKS = sorted((CHECKOUT / "docs").rglob("*.ipynb"))
ODD_PHRASES = re.compile(
    r"\b(so many|hangs? on|mend(s|ed|ing)?|looks? at|looked at|made from the same|(is|are|was|were) told"
    r"|(goes|go|went|going) on|what is no|has no word for|gets? on for|only then does|not read is|here stands?"
    r"|as far as they are)\b",
    re.IGNORECASE,
)
#: Folders whose text is English.
FOLDERS = (
    *("docs", "features", "hep_core", "hep_simulation", "hep_studies", "ingestion", "models"),
    *("pipeline", "samples", "tests", "training"),
)
#: Modules of Python that may name pages and objects.
SOURCE = sorted(
    path
    for folder in FOLDERS
    if folder not in {"docs", "tests"}
    for path in (CHECKOUT / folder).rglob("*.py")
)


def cells_of(notebook: Path, cell_type: str) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == cell_type]


def text_of(page: Path) -> str:
    if page.suffix == ".ipynb":
        return "\n".join("".join(cell["source"]) for cell in cells_of(page, "markdown"))
    return page.read_text(encoding="utf-8")


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub and the site make of headings of plain words."""
    anchors = set()
    for heading in re.findall(r"^#+ +(.+)$", text_of(page), flags=re.MULTILINE):
        words = re.sub(r"[^\w -]", "", heading.lower()).strip()
        anchors.add(words.replace(" ", "-"))
    return anchors


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


def test_every_page_that_the_source_names_exists() -> None:
    named = set()
    for path in [CHECKOUT / "Makefile", *SOURCE]:
        named |= set(re.findall(r"\bdocs/[\w./-]+\.(?:md|ipynb)\b", text_of(path)))

    assert "docs/run-folder.md" in named
    assert [page for page in sorted(named) if not (CHECKOUT / page).exists()] == []


def test_every_object_that_the_source_names_in_backticks_exists() -> None:
    packages = "hep_core|ingestion|features|models|training|pipeline|hep_simulation|hep_studies"
    missing = []
    for path in SOURCE:
        for name in re.findall(rf"`((?:{packages})(?:\.[A-Za-z_]\w*)+)(?:\(\))?`", text_of(path)):
            # The config has a section `features` too.
            is_key = name.startswith("features.") and find_spec(module_in(name)) is None
            if not is_key and not exists(name):
                missing.append((path.name, name))

    assert missing == []
    assert exists("features.schema.features_schema")
    assert not exists("features.schema.described")


def module_in(name: str) -> str:
    """The first two parts of a dotted name."""
    return ".".join(name.split(".")[:2])


def exists(name: str) -> bool:
    """Whether a dotted name is that of a module, or of an object in one."""
    try:
        resolve_name(name)
    except (AttributeError, ModuleNotFoundError):
        return False
    return True


def test_a_page_has_links_and_anchors() -> None:
    """Else the test of links could not fail."""
    anchors = anchors_of(CHECKOUT / "docs" / "operations.md")

    assert "docs/operations.md#watching-it" in links_of(CHECKOUT / "README.md")
    assert "watching-it" in anchors
    assert "watching" not in anchors


def test_every_page_is_linked_from_the_front_page_and_every_study_from_that_of_studies() -> None:
    linked = {CHECKOUT / "README.md"}
    for name in ("README.md", "docs/comparison.md", "docs/studies/index.md"):
        page = CHECKOUT / name
        paths = [link.partition("#")[0] for link in links_of(page)]
        linked |= {(page.parent / path).resolve() for path in paths}

    pages = {page for page in (*PAGES, *NOTEBOOKS) if page.name != "README.md"}
    assert pages - linked == set()


@pytest.mark.parametrize(
    "path", sorted((CHECKOUT / "docs" / "studies").glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_configs_of_published_pages_are_valid(path: Path) -> None:
    assert load_config(str(path)).classes == ["QCD", "ttbar", "W+jets"]


def test_the_front_page_is_short() -> None:
    assert len(text_of(CHECKOUT / "README.md").split()) <= 1000


def test_all_pages_state_the_same_time_for_make_test() -> None:
    time = re.search(r"^TEST_TIME := (.+)$", MAKEFILE, re.MULTILINE)

    assert time
    for page in ("README.md", "CONTRIBUTING.md"):
        assert f"({time[1]})" in text_of(CHECKOUT / page), page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_make_target_of_a_page_exists(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)
    commands = re.findall(
        r"(?:`|^    )make ([a-z][a-z-]*(?: [a-z-]+)*)", text_of(page), re.MULTILINE
    )

    assert set(" ".join(commands).split()) <= set(targets)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_small_and_ran_without_errors(notebook: Path) -> None:
    code_cells = cells_of(notebook, "code")

    assert notebook.stat().st_size < 300_000
    assert [cell["execution_count"] for cell in code_cells] == [*range(1, len(code_cells) + 1)]
    for cell in code_cells:
        assert "error" not in [output["output_type"] for output in cell["outputs"]]


def test_the_english_is_plain() -> None:
    paths = [CHECKOUT / "Makefile", *PAGES]
    for folder in FOLDERS:
        paths += (CHECKOUT / folder).rglob("*")
    suffixes = {".html", ".md", ".py", ".sh", ".yaml"}
    odd_phrases = []
    for path in paths:
        if path != Path(__file__) and (path.suffix in suffixes or path.name == "Makefile"):
            text = path.read_text(encoding="utf-8").replace("_", " ")
            odd_phrases += [(path.name, match[0]) for match in ODD_PHRASES.finditer(text)]

    assert odd_phrases == []


def test_examples_import_only_what_is_public() -> None:
    docs = CHECKOUT / "docs"
    pattern = r"^\s*from (hep_core|pipeline|ingestion|features|models|training)\.(\w+)"
    imports = set()
    for path in (*docs.glob("**/*.md"), *(docs / "examples").glob("**/*.py")):
        imports |= set(re.findall(pattern, text_of(path), re.MULTILINE))

    assert ("training", "algorithms") in imports
    for package, name in imports:
        assert name in importlib.import_module(package).__all__


def test_no_page_of_a_study_names_a_folder_of_the_machine_that_made_it() -> None:
    for file in (CHECKOUT / "docs" / "studies").glob("*/result.json.xz"):
        assert "--config /" not in lzma.decompress(file.read_bytes()).decode(), file
    for page in PAGES:
        assert not re.search(r"compare --study \S+ .*--config /", text_of(page)), page
