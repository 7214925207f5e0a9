"""docs/doctor.md says what the rules say, and what would have told each of the bugs that it lists."""

import re

from ddviz.check import docs
from ddviz.check.bugs import BUGS
from ddviz.check.doctor import RULES


def test_the_page_is_current():
    assert docs.main(["--check"]) == 0, "run: python -m ddviz.check.docs"


def test_check_tells_stale_from_current(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(docs, "PAGE", tmp_path / "doctor.md")
    assert docs.main(["--check"]) == 1
    assert "docs/doctor.md is not current; run: python -m ddviz.check.docs" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0


def test_every_rule_has_a_text_of_sentences_and_a_row():
    page = docs.PAGE.read_text("utf-8")
    for rule in RULES.values():
        assert rule.text.endswith(".")
        assert page.count(f"\n| `{rule.name}`") == 1
        assert ("**notice**" in row_of(page, rule.name)) == (rule.severity == "notice")


def row_of(page, name):
    return next(line for line in page.splitlines() if line.startswith(f"| `{name}`"))


def test_the_34_bugs_each_have_a_reference_a_signal_and_what_tells_it():
    assert len(BUGS) == 34
    for bug in BUGS:
        assert bug.references and all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", ref) for ref in bug.references)
        assert bug.wrong and bug.signal
        assert set(bug.rules) <= set(RULES), bug
        assert bug.rules or bug.beyond, "a row without a rule says why"
    numbers = [line.split(" | ")[0] for line in docs.bugs_table().splitlines()[2:]]
    assert numbers == [f"| {number}" for number in range(1, 35)]
