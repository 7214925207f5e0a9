"""docs/doctor.md, made from the rules' docstrings and the table of real bugs.

In:  RULES (doctor.py), BUGS (bugs.py).
Out: the file. `python -m ddviz.check.docs` writes it; with --check it says whether it is stale.
Not here: what a rule checks (rules_*.py).
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import ddviz
from ddviz.check.bugs import BUGS, Bug
from ddviz.check.doctor import MOST_PER_RULE, RULES
from ddviz.check.rules import ALL, Rule

PAGE = Path(ddviz.__file__).parents[1] / "docs" / "doctor.md"

INTRO = f"""\
# The doctor

<!-- Generated from ddviz/check/ by `python -m ddviz.check.docs`; edit there. -->

`ddviz doctor x.ddviz` (or several, or a folder: every trace below it) examines what an engine recorded and
says where it breaks a rule: the step, the node, the values, the likely cause, what to look at next. It exits
with 0 where no rule is broken, 1 with faults, 2 where there is nothing to examine. `--json` gives the
findings as data; in Python, `ddviz.check.doctor.examine(trace)` returns them. In the app, and in an
exported page, they stand below the text: a click goes to the step and node.

`ddviz doctor --live` (of a folder, by default that of the app's runs, or of one file) prints findings while
steps arrive, until Ctrl-C, or until the file has its end; it exits with 0 or 1, too. Traces that were not
written to in the last minute are left alone until they are. With `--json` each finding is a line.

What to know when reading its findings:

* **Begin at the top.** Findings come by step, and within a step in the order of the stages. The first one
  usually explains the others.
* **Faults and notices.** A fault is what can't be right. A notice is an observation that may have a good
  reason: a decision within rounding, a slow step, a drafter that never hits. Notices are shown and don't
  change the exit code: a trace with notices alone is clean.
* **A rule that lacks its arrays is silent.** A `light` trace, or an engine that records less, is examined
  as far as it goes. Silence of a rule therefore says something only about traces that hold its arrays.
* **A broken array silences what is computed from it.** A step whose lists disagree in length has findings
  of `shapes` alone; a path that is no path has one of `accept-index`, and its replay is left out.
* **It never fixes anything and runs no model.** It cannot know that logits are wrong: for that, the target
  must compute them again ([audit.md](audit.md)). Whether sampling is right takes many draws
  ([losslessness.md](losslessness.md)).
* **Tolerances.** Acceptance is replayed in float32 from the recorded values, exactly. Where a recorded list
  has 5 digits, or a sum runs over the vocabulary, the rule allows for that and its text says how much.
* At most {MOST_PER_RULE} findings of one rule are listed per trace, the rest is counted.

## Rules

A rule with names in brackets holds for those algorithms only. "Folder": it looks from trace to trace, and
speaks only where a folder is examined.
"""

BUGS_INTRO = f"""
## {len(BUGS)} real bugs

What went wrong in public engines with trees, blocks and drafters, and what of it a trace shows. The rules
named would have spoken, had the engine been traced; tests plant such a defect for each rule, not each of
these bugs.
"""


def doctor_page() -> str:
    """The text of docs/doctor.md."""
    return "\n".join([INTRO, rules_table(), BUGS_INTRO, bugs_table()])


def rules_table() -> str:
    """All rules in Markdown."""
    head = ("rule", "what must hold", "likely cause where it does not", "look at")
    return _table(head, (_rule_cells(rule) for rule in RULES.values()))


def bugs_table() -> str:
    """All bugs in Markdown."""
    head = ("", "reported as", "what went wrong", "what a trace shows", "told by")
    return _table(head, (_bug_cells(number, bug) for number, bug in enumerate(BUGS, start=1)))


def _rule_cells(rule: Rule) -> tuple[str, ...]:
    marks = ["notice"] * (rule.severity == "notice") + ["folder"] * (rule.scope == "folder")
    only = [] if rule.algorithms == ALL else sorted(rule.algorithms)
    name = f"`{rule.name}`" + (f" **{', '.join(marks)}**" if marks else "")
    return (
        name + (f" ({', '.join(only)})" if only else ""),
        " ".join(rule.text.split()),
        rule.cause,
        rule.look_at,
    )


def _bug_cells(number: int, bug: Bug) -> tuple[str, ...]:
    told = [", ".join(f"`{name}`" for name in bug.rules), bug.beyond]
    return (
        str(number),
        ", ".join(map(_link, bug.references)),
        bug.wrong,
        bug.signal,
        "; ".join(filter(None, told)),
    )


def _link(reference: str) -> str:
    """GitHub leads from an issue's address to the pull request of that number."""
    repository, number = reference.split("#")
    return f"[{repository.split('/')[1]} #{number}](https://github.com/{repository}/issues/{number})"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def main(arguments: list[str]) -> int:
    if PAGE.exists() and PAGE.read_text("utf-8") == doctor_page():
        return 0
    if "--check" in arguments:
        print(f"docs/{PAGE.name} is not current; run: python -m ddviz.check.docs")
        return 1
    PAGE.write_text(doctor_page(), "utf-8")
    print(f"docs/{PAGE.name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
