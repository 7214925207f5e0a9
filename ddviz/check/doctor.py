"""The doctor: examine traces by rules and say what is wrong, where, and where to look.

In:  a trace, a file, or a folder of traces.
Out: findings as data, and `report`, which lays them out for a terminal.
Not here: the rules (rules_*.py). The doctor never fixes anything and runs no model: what needs one is
checked by audit.py and losslessness.py.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from rich.text import Text

from ddviz.check import rules_accept, rules_chain, rules_draft, rules_order, rules_structure
from ddviz.check.rules import ALL, Fault, Finding, Rule
from ddviz.check.views import Outline, StepView, TraceView, outline_of
from ddviz.errors import DdvizError, TraceError
from ddviz.trace import Trace, load

# By name, in the order of the stages: an early fault explains later ones.
RULES: dict[str, Rule] = {
    rule.name: rule
    for module in (rules_structure, rules_draft, rules_accept, rules_order, rules_chain)
    for rule in vars(module).values()
    if isinstance(rule, Rule)
}
MOST_PER_RULE = 20  # findings of one rule that one trace shows; the rest is counted
SHOWN_PER_RULE = 3  # of those, how many `report` prints


def examine(trace: Trace, rules: Iterable[str] | None = None) -> list[Finding]:
    """What a trace breaks, the earliest step first, then in the order of the stages; [] = clean.

    rules  names to restrict it to; None = all that hold for the trace's algorithm
    Raises DdvizError for a name that is no rule. Never raises for what a trace holds.
    """
    chosen = _chosen(rules, trace.header.algorithm)
    tally = _Tally()
    outlines: list[Outline] = []
    with np.errstate(all="ignore"):
        for step in trace.steps:
            view = StepView(trace.header, step)
            faults = list(RULES["shapes"].check(view))
            outlines.append(outline_of(step, sound=not faults))
            for rule in chosen:
                if rule.name == "shapes":
                    tally.add(rule, faults, step.index)
                elif rule.scope == "step" and not faults:
                    tally.add(rule, rule.check(view), step.index)
        whole = TraceView(trace, outlines)
        for rule in chosen:
            if rule.scope == "trace":
                tally.add(rule, rule.check(whole), None)
    return tally.findings()


def examine_path(path: str | Path, rules: Iterable[str] | None = None) -> dict[Path, list[Finding]]:
    """Findings per file, for one file or every *.ddviz below a folder, by name.

    Raises TraceError where the path, or a single file named, holds no trace. In a folder such a file is a
    finding of rule `incomplete`.
    """
    rules, path = None if rules is None else list(rules), Path(path)
    if not path.is_dir():
        return {path: examine(load(path), rules)}
    files = sorted(file for file in path.rglob("*.ddviz") if file.is_file())
    if not files:
        raise TraceError(f"{path}: no .ddviz file in it or below; record one with: ddviz record")
    return {file: _examine_file(file, rules) for file in files}


def report(results: Mapping[Path, list[Finding]]) -> Text:
    """Findings grouped by trace and rule, for `console.print`; `.plain` is the same as text.

    What a trace brought in (an engine's message, a file's name) is made visible, never interpreted.
    """
    text = Text()
    for path, findings in results.items():
        count = f"{len(findings)} finding{'s' if len(findings) != 1 else ''}" if findings else "clean"
        text.append(_visible(str(path)), "bold").append(f": {count}\n", "red" if findings else "green")
        for name in dict.fromkeys(finding.rule for finding in findings):  # what went wrong first, first
            _append_rule(text, RULES[name], [finding for finding in findings if finding.rule == name])
    if len(results) > 1:
        clean = sum(not findings for findings in results.values())
        text.append(f"{len(results)} traces examined, {clean} clean\n", "bold")
    return text


def print_report(results: Mapping[Path, list[Finding]], as_json: bool = False) -> int:
    """Print `report`, or the findings as JSON by path. Returns the exit code: 0 clean, 1 findings."""
    if as_json:
        by_path = {str(path): findings for path, findings in results.items()}
        print(msgspec.json.format(msgspec.json.encode(by_path), indent=2).decode())
    else:
        Console(highlight=False).print(report(results), end="", soft_wrap=True)
    return int(any(results.values()))


def rules_table() -> str:
    """All rules in Markdown, as docs/doctor.md holds them."""
    rows = ["| rule | what must hold | likely cause where it does not | look at |", "|---|---|---|---|"]
    for rule in RULES.values():
        held = " ".join(rule.text.split())
        only = "" if rule.algorithms == ALL else f" ({', '.join(sorted(rule.algorithms))})"
        cells = (f"`{rule.name}`{only}", held, rule.cause, rule.look_at)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


class _Tally:
    """Findings of one trace, the first few of each rule, the rest as a number."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._counts: dict[str, int] = {}

    def add(self, rule: Rule, faults: Iterable[Fault], step: int | None) -> None:
        for fault in faults:
            count = self._counts[rule.name] = self._counts.get(rule.name, 0) + 1
            if count <= MOST_PER_RULE:
                self._found.append(rule.finding(fault, step))

    def findings(self) -> list[Finding]:
        order = {name: place for place, name in enumerate(RULES)}
        more = [
            RULES[name].finding(Fault(f"and {count - MOST_PER_RULE} more"), None, count - MOST_PER_RULE)
            for name, count in self._counts.items()
            if count > MOST_PER_RULE
        ]
        found = sorted(self._found, key=lambda f: (f.step is None, f.step or 0, order[f.rule]))
        return found + more


def _chosen(names: Iterable[str] | None, algorithm: str) -> list[Rule]:
    if names is None:
        return [rule for rule in RULES.values() if algorithm in rule.algorithms]
    names = list(names)
    for name in names:
        if name not in RULES:
            raise DdvizError(f"{name!r} is no rule of the doctor; the rules are {', '.join(RULES)}")
    return [rule for rule in RULES.values() if rule.name in names and algorithm in rule.algorithms]


def _examine_file(file: Path, rules: list[str] | None) -> list[Finding]:
    try:
        return examine(load(file), rules)
    except TraceError as error:
        return [RULES["incomplete"].finding(Fault(str(error)), None)]


def _append_rule(text: Text, rule: Rule, findings: list[Finding]) -> None:
    text.append(f"  {rule.name}", "yellow").append(f"  must hold: {_first_sentence(rule.text)}\n", "dim")
    shown, rest = findings[:SHOWN_PER_RULE], findings[SHOWN_PER_RULE:]
    for finding in shown:
        text.append(f"    {_where(finding)}{_visible(finding.message)}\n")
    if rest:
        text.append(f"    and {sum(finding.more or 1 for finding in rest)} more\n", "dim")
    for cause in dict.fromkeys(finding.cause for finding in shown):
        text.append("    likely cause: ", "dim").append(f"{cause}\n")
    text.append("    look at: ", "dim").append(f"{rule.look_at}\n")


def _where(finding: Finding) -> str:
    places = [("step", finding.step), ("node", finding.node)]
    told = " ".join(f"{name} {number}" for name, number in places if number is not None)
    return f"{told}: " if told else ""


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _visible(text: str) -> str:
    """What a terminal could obey, by number: a trace's text comes from anywhere."""
    return "".join(c if c.isprintable() else f"⟨U+{ord(c):04X}⟩" for c in text)
