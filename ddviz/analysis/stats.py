"""`ddviz stats`: what was accepted, at which depth and rank, and where the time went.

In:  traces.
Out: Stats: one Group per setting and temperature, and all of them added up.
Not here: layout for a terminal and JSON (stats_report.py); what another setting would have done (whatif.py).

What is counted. A step's **walk** goes along its accepted path. At each node of the path it examines that
node's children in link order until one is accepted; the first path node where none is ends the walk.

    root ── a ✓ ── b ✗          depth 1: reached, examined, accepted     a: examined, accepted, rank 0
         │      └─ c ✗          depth 2: reached, examined               b, c: examined; rank 0 and 1
         └─ d                   depth 3: not reached                     d: unreached

reached   steps whose accepted path has a node at depth d - 1 (the root has depth 0)
examined  of those, the steps where that node has a child, so that the walk looked at depth d at all
accepted  of those, the steps whose path goes on to depth d
A **node** counts as examined where the walk compared it: it is accepted, or it was refused before the walk
went on or ended. Its siblings of lower rank were all refused before it, so the rate of rank r is that of a
node whose better siblings were wrong.
**rate** is accepted / examined. **share** is accepted / all steps at a depth, and the part of all accepted
nodes at a rank.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ddviz.analysis.traces import setting_of
from ddviz.trace import Trace
from ddviz.trace.schema import Step
from ddviz.tree import compile_ddtree_retrieve, depths_of, node_statuses
from ddviz.tree.accept import ACCEPTED, UNREACHED


@dataclass(slots=True)
class DepthCount:
    """Steps, except nodes."""

    nodes: int = 0  # drafted at this depth
    reached: int = 0
    examined: int = 0
    accepted: int = 0


@dataclass(slots=True)
class RankCount:
    """Nodes."""

    nodes: int = 0
    examined: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Group:
    """Sums over the steps of traces of one setting and temperature."""

    setting: str  # traces.setting_of
    temperature: float | None  # None: of several
    traces: int = 0
    steps: int = 0
    emitted: int = 0  # tokens that steps added to the output: cut at stop tokens and max tokens, no prefill
    accept_lengths: int = 0  # accepted nodes + bonus, uncut
    odd_steps: int = 0  # whose tree or path is none, which count above but not by depth and rank
    depths: defaultdict[int, DepthCount] = field(default_factory=lambda: defaultdict(DepthCount))
    ranks: defaultdict[int, RankCount] = field(default_factory=lambda: defaultdict(RankCount))
    stages_us: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # per step
    timed_us: float = 0.0  # of steps that tell their time, whole
    timed_emitted: int = 0  # by those

    @property
    def tokens_per_step(self) -> float:
        return self.emitted / max(1, self.steps)

    @property
    def accept_length(self) -> float:
        return self.accept_lengths / max(1, self.steps)

    @property
    def tokens_per_s(self) -> float | None:
        """Over the steps' own time: prefill, pauses and recording are not in it."""
        return self.timed_emitted / self.timed_us * 1e6 if self.timed_us else None


@dataclass(slots=True)
class Stats:
    groups: list[Group]
    all: Group
    notes: list[str]


def stats(traces: Iterable[Trace], notes: list[str] | None = None) -> Stats:
    """Count over all steps of all traces; every count also goes into `all`."""
    groups: dict[tuple[str, float], Group] = {}
    whole = Group("all", None)
    for trace in traces:
        key = setting_of(trace.header), trace.header.sampling.temperature
        group = groups.setdefault(key, Group(*key))
        for into in (group, whole):
            into.traces += 1
        for step in trace.steps:
            for into in (group, whole):
                count_step(into, step)
    in_order = sorted(groups.values(), key=lambda group: (group.temperature, group.setting))
    return Stats(in_order, whole, notes or [])


def count_step(group: Group, step: Step) -> None:
    group.steps += 1
    group.emitted += len(step.emitted)
    group.accept_lengths += step.accept.num_accepted + 1
    for stage, time in step.times_us.items():
        if stage not in ("total", "step"):
            group.stages_us[stage].append(time)
    if step.total_us is not None:
        group.timed_us += step.total_us
        group.timed_emitted += len(step.emitted)
    depths, path = depths_of(step.tree.parents), step.local_path
    if depths is None or not all(0 <= node < len(depths) for node in path):
        group.odd_steps += 1
        return
    _count_depths(group, step, depths, path)
    _count_ranks(group, step, path)


def _count_depths(group: Group, step: Step, depths: list[int], path: list[int]) -> None:
    parents_with_child = set(step.tree.parents)
    for depth in depths[1:]:
        group.depths[depth].nodes += 1
    for place, node in enumerate(path):
        count = group.depths[place + 1]
        count.reached += 1
        count.examined += node in parents_with_child
        count.accepted += place + 1 < len(path)


def _count_ranks(group: Group, step: Step, path: list[int]) -> None:
    ranks = step.tree.ranks
    if ranks is None or len(ranks) != len(step.tree.parents):
        return
    statuses = _statuses(step, path)
    for rank, status in zip(ranks[1:], statuses[1:], strict=True):
        count = group.ranks[rank]
        count.nodes += 1
        count.examined += status != UNREACHED
        count.accepted += status == ACCEPTED


def _statuses(step: Step, path: list[int]) -> list[str]:
    """Of each node, by the recorded links; a light trace has none, then by those that compile would make."""
    parents, links = step.tree.parents, step.retrieve
    if links is None:
        made = compile_ddtree_retrieve(np.array(parents, np.int32))
        return node_statuses(len(parents), path, made.next_token, made.next_sibling)
    return node_statuses(len(parents), path, np.array(links.next_token), np.array(links.next_sibling))
