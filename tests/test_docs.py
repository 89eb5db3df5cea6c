"""The documentation: every page can be found, every relative link leads somewhere, and what is shown is true."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import speedyfeed
from tests import forked
from tools import draw_layers

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]


def test_every_page_is_reachable_from_the_index() -> None:
    found, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in found and page.suffix == ".md":
            found.add(page)
            waiting += [target for target, _ in links(page) if target.is_relative_to(DOCS)]
    assert len(PAGES) > 10
    assert [page.relative_to(DOCS) for page in PAGES if page not in found] == []


def test_no_page_links_out_of_the_site() -> None:
    targets = [(page.name, target) for page in PAGES for target, _ in links(page)]
    assert len(targets) > 100
    assert [(name, target) for name, target in targets if not target.is_relative_to(DOCS)] == []


@pytest.mark.parametrize("page", [*PAGES, *FRONT], ids=lambda page: str(page.relative_to(ROOT)))
def test_no_relative_link_is_broken(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{page.name} links to {target}, which does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} links to #{anchor}, which {target.name} does not have"


def test_the_site_lists_every_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    for page in PAGES:
        name = page.relative_to(DOCS).as_posix()
        assert name in navigation or name.startswith("experiments/"), f"mkdocs.yml does not list {name}"


def test_the_index_of_experiments_has_every_entry_newest_first() -> None:
    index = (DOCS / "experiments" / "index.md").read_text("utf-8")
    rows = re.findall(
        r"^\| (\d{4}-\d\d-\d\d) \| \[.*?\]\((.*?)\) \|.*\| (?:current|superseded).* \|$", index, re.M
    )
    entries = {page.name for page in (DOCS / "experiments").glob("2*.md")}
    assert len(rows) == len(entries)
    assert {name for _, name in rows} == entries
    assert [date for date, _ in rows] == sorted((date for date, _ in rows), reverse=True)
    assert all(name.startswith(date) for date, name in rows)


def test_the_glossary_is_in_alphabetical_order() -> None:
    table = (DOCS / "glossary.md").read_text("utf-8").split("## ")[0]
    terms = re.findall(r"^\| ([^|]+?) \|", table, re.M)[1:]
    assert len(terms) > 50
    assert terms == sorted(terms, key=str.lower)


def test_the_reference_names_modules_that_exist() -> None:
    modules = [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.M)]
    assert len(modules) > 20
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


def test_the_figure_of_the_layers_is_up_to_date() -> None:
    assert draw_layers.FIGURE.read_text("utf-8") == draw_layers.draw(), "run: python tools/draw_layers.py"


def test_the_architecture_page_names_every_package_and_module() -> None:
    files = (DOCS / "architecture.md").read_text("utf-8").split("## Files")[1].split("## ")[0]
    named = set(re.findall(r"(\w+)(?:/|\.py)", files))
    assert {name for layer in draw_layers.read_layers() for name in layer} - named == set()


def test_package_citation_and_changelog_have_one_version_and_date() -> None:
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    (date,) = re.findall(r"^date-released: (.+)$", citation, re.M)
    assert f"\nversion: {speedyfeed.__version__}\n" in citation
    releases = re.findall(r"^## \[(\d.*?)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert releases[0] == (speedyfeed.__version__, date)
    assert [day for _, day in releases] == sorted((day for _, day in releases), reverse=True)


def test_the_code_of_extending_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "extending.md").read_text("utf-8"), re.M | re.S)
    assert len(blocks) == 9
    (tmp_path / "test_extending.py").write_text("\n\n".join(blocks), "utf-8")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", *options, "test_extending.py"]
    run = forked.run(command, cwd=tmp_path)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """(file, anchor) of every relative link of a page, images included."""
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if not re.match(r"[a-z]+:", target):
            name, _, anchor = target.partition("#")
            yield (page.parent / name).resolve() if name else page, anchor


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


def text_of(page: Path) -> str:
    """A page without its code."""
    return re.sub(r"^```.*?^```|`[^`\n]*`(?!\])", "", page.read_text("utf-8"), flags=re.M | re.S)
