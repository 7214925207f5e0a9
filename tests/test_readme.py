"""The README and the docs name nothing that is not there."""

import re
from pathlib import Path

import pytest

from ddviz.cli import make_parser

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_the_readme_is_finished_and_short():
    text = (ROOT / "README.md").read_text("utf-8")
    assert not re.search(r"\b[A-Z]+_[A-Z]+\b|TODO|TBD", text.replace("TORCH_INDEX", ""))
    assert len(text.splitlines()) < 200


def test_every_command_of_the_readme_exists():
    text = (ROOT / "README.md").read_text("utf-8")
    commands = set(re.findall(r"^ddviz (\w+)", text, re.MULTILINE))
    parser = next(a for a in make_parser()._actions if a.choices and "record" in a.choices)
    assert commands == set(parser.choices)
    targets = set(re.findall(r"^make (\w+)", text, re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
