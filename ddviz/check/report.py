"""Findings laid out for a terminal, or as JSON.

In:  findings by file.
Out: `report`, `print_report` with the exit code.
Not here: what is found (doctor.py), findings while a trace grows (live.py).
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from ddviz.check.doctor import RULES, faults
from ddviz.check.rules import Finding, Rule
from ddviz.errors import counted, visible

SHOWN_PER_RULE = 3  # findings of one rule in one trace that are printed; the rest is counted
COLOURS = {"fault": "red", "notice": "yellow"}


def report(results: Mapping[Path, list[Finding]]) -> Text:
    """Findings grouped by trace and rule, for `console.print`; `.plain` is the same as text.

    What a trace brought in (an engine's message, a file's name) is made visible, never interpreted.
    """
    text = Text()
    for path, findings in results.items():
        text.append(visible(str(path)), "bold").append(f": {summary(findings)}\n", colour(findings))
        for name in dict.fromkeys(finding.rule for finding in findings):  # what went wrong first, first
            _append_rule(text, RULES[name], [finding for finding in findings if finding.rule == name])
    if len(results) > 1:
        clean = sum(not faults(findings) for findings in results.values())
        text.append(f"{len(results)} traces examined, {clean} clean\n", "bold")
    return text


def print_report(results: Mapping[Path, list[Finding]], as_json: bool = False) -> int:
    """Print `report`, or the findings as JSON by path. Returns the exit code: 0 no fault, 1 faults."""
    if as_json:
        by_path = {str(path): findings for path, findings in results.items()}
        print(msgspec.json.format(msgspec.json.encode(by_path), indent=2).decode())
    else:
        Console(highlight=False).print(report(results), end="", soft_wrap=True)
    return int(any(faults(findings) for findings in results.values()))


def line(path: Path, finding: Finding | None, says: str) -> Text:
    """News of a trace that is followed (live.py): one line, and the cause of a finding in another."""
    if finding is None:
        return Text(f"{visible(str(path))}: {says}\n", "dim")
    text = Text(f"{visible(str(path))}: ", "bold").append(finding.rule, COLOURS[finding.severity])
    kind = ": " if finding.severity == "fault" else " (notice): "
    text.append(f"{kind}{where(finding)}{visible(says)}\n")
    return text.append("    likely cause: ", "dim").append(f"{finding.cause}\n")


def summary(findings: list[Finding]) -> str:
    """clean; 1 finding, 2 notices ..."""
    wrong = len(faults(findings))
    parts = [counted(wrong, "finding")] if wrong else ["clean"]
    return ", ".join(parts + [counted(len(findings) - wrong, "notice")] * (len(findings) > wrong))


def colour(findings: list[Finding]) -> str:
    return "red" if faults(findings) else "green"


def where(finding: Finding) -> str:
    """step 3 node 5: , or nothing."""
    places = [("step", finding.step), ("node", finding.node)]
    told = " ".join(f"{name} {number}" for name, number in places if number is not None)
    return f"{told}: " if told else ""


def _append_rule(text: Text, rule: Rule, findings: list[Finding]) -> None:
    holds = "must hold" if rule.severity == "fault" else "notice, not a fault; usually"
    text.append(f"  {rule.name}", COLOURS[rule.severity]).append(
        f"  {holds}: {first_sentence(rule.text)}\n", "dim"
    )
    shown, rest = findings[:SHOWN_PER_RULE], findings[SHOWN_PER_RULE:]
    for finding in shown:
        text.append(f"    {where(finding)}{visible(finding.message)}\n")
    if rest:
        text.append(f"    and {sum(finding.more or 1 for finding in rest)} more\n", "dim")
    for cause in dict.fromkeys(finding.cause for finding in shown):
        text.append("    likely cause: ", "dim").append(f"{cause}\n")
    text.append("    look at: ", "dim").append(f"{rule.look_at}\n")


def first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())
