"""What the site needs beside `docs/`: other pages, the reference, notebooks, links and tables."""

from __future__ import annotations

import itertools
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import reference  # noqa: E402 - the path to it is set above

from pipeline.api import load_run  # noqa: E402

#: The report of the demo, which `make docs` runs.
REPORT = "example/report.html"
#: Pages of the site that stand elsewhere in the repository, and files of which the site has a page.
PAGE_OF = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "samples/README.md": "sample.md",
    "pipeline/configs/full.yaml": "reference/config.md",
    "features/columns.py": "reference/features.md",
    "ingestion/schema.py": "reference/features.md",
    "pipeline/cli.py": "reference/commands.md",
    "training/algorithms/registry.py": "reference/algorithms.md",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are no Markdown under `docs/`."""

    def add(name: str, content: str | bytes) -> None:
        files.append(File.generated(config, name, content=content))

    for path, page in PAGE_OF.items():
        if path.endswith(".md"):
            add(page, _with_links((ROOT / path).read_text(encoding="utf-8"), path, page, config))
    front = files.get_file_from_path("index.md")
    add(REPORT, (load_run("demo").output("report") / "report.html").read_bytes())
    if front is not None:
        front.content_string = re.sub(
            r"(!\[The top of the report\]\(\S+\))", rf"[\1]({REPORT})", front.content_string
        )
    for name, make in reference.PAGES.items():
        add(
            f"reference/{name}.md",
            _with_links(make(), "docs/reference.md", f"reference/{name}.md", config),
        )
    for notebook in sorted((ROOT / "docs" / "examples").glob("*.ipynb")):
        page = f"examples/{notebook.stem}.md"
        names = {"unique_key": notebook.stem, "output_files_dir": notebook.stem}
        body, resources = MarkdownExporter().from_filename(str(notebook), resources=names)
        add(page, _with_links(body, f"docs/examples/{notebook.name}", page, config))
        for name, content in resources["outputs"].items():
            add(f"examples/{name}", content)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Links of the pages under `docs/`; those of the others are done."""
    if page.file.generated_by:
        return markdown
    return _with_links(markdown, f"docs/{page.file.src_uri}", page.file.src_uri, config)


def on_page_content(html: str, **_: Any) -> str:
    """Each cell of a table gets the name of its column, which `site.css` shows on a phone."""

    def table(found: re.Match[str]) -> str:
        heads = [
            re.sub(r"<[^>]+>|\"", "", head)
            for head in re.findall(r"<th\b[^>]*>(.*?)</th>", found[0], re.DOTALL)
        ]
        names = itertools.cycle(heads)
        # A number such as 4.91e-05 is not broken at its hyphen.
        whole = re.sub(
            r"(?<=[ >])[\d.]+e-\d+", r'<span style="white-space: nowrap">\g<0></span>', found[0]
        )
        return (
            re.sub(r"<td\b", lambda _: f'<td data-label="{next(names)}"', whole) if heads else whole
        )

    return re.sub(r"<table>.*?</table>", table, html, flags=re.DOTALL)


def _with_links(markdown: str, path: str, page: str, config: Any) -> str:
    """Turn links between files of the repository into links between pages of the site.

    Links to files without a page lead into the repository; without its URL they become plain names.
    """

    def link(match: re.Match[str]) -> str:
        """Return the link of the site for one of the repository."""
        text, target, anchor = match.groups(default="")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if not (ROOT / file).exists():
            # It is of the site itself, such as a figure of a notebook; MkDocs checks it.
            return match[0]
        target_page = _page_of(file)
        if target_page is not None:
            relative = posixpath.relpath(target_page, posixpath.dirname(page) or ".")
            return f"[{text}]({relative}{anchor})"
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{file})"
        return f"`{text}`"

    return re.sub(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)", link, markdown)


def _page_of(file: str) -> str | None:
    """Return the page of the site for a file of the repository; None if it has none."""
    if file in PAGE_OF:
        return PAGE_OF[file]
    if not file.startswith("docs/") or file.endswith(".py"):
        return None
    page = file.removeprefix("docs/")
    if page.endswith(".ipynb"):
        return page.removesuffix(".ipynb") + ".md"
    return page
