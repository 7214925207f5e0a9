"""What the doctor's rules look at: a step with what follows from it, and the outline of a whole trace.

In:  Header and Step, or a Trace.
Out: StepView, TraceView.
Not here: any judgement (rules_*.py).

A derived value is None where the arrays it follows from are absent or wrong. So a rule that needs the path is
silent where the path itself is the fault, and the reader gets the cause without its echoes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from ddviz.trace.reader import Trace
from ddviz.trace.schema import Header, Step
from ddviz.tree import depths_of, traverse

FLOAT32_ULP = 2.0**-23


class StepView:
    """One step. Beyond `step` itself, all of it takes the lengths for granted: see rule `shapes`."""

    def __init__(self, header: Header, step: Step) -> None:
        self.header, self.step = header, step

    @property
    def n(self) -> int:
        return len(self.step.tree.tokens)

    @property
    def width(self) -> int:
        """T, of whichever array says so first."""
        step = self.step
        if step.batch is not None:
            return step.batch.q_len
        if step.retrieve is not None:
            return len(step.retrieve.index)
        return len(step.positions or step.slots or step.tree.tokens)

    @cached_property
    def depths(self) -> list[int] | None:
        """[n]; None where the first node is no root, or a parent does not come before its child."""
        parents = self.step.tree.parents
        return depths_of(parents) if parents[0] == -1 else None

    @cached_property
    def children(self) -> list[list[int]] | None:
        """Children of each node in the order the kernel examines them; None where links are wrong."""
        if self.depths is None:
            return None
        walk = self.walk
        if isinstance(walk, str) or dict(walk) != dict(enumerate(self.step.tree.parents[1:], start=1)):
            return None
        children: list[list[int]] = [[] for _ in range(self.n)]
        for node, parent in walk:
            children[parent].append(node)
        return children

    @cached_property
    def walk(self) -> list[tuple[int, int]] | str:
        """(node, parent) in the order of the links, or the sentence that says why there is no such walk.

        Without recorded links, the order in which `compile_ddtree_retrieve` links: by index.
        """
        retrieve = self.step.retrieve
        if retrieve is None:
            return list(enumerate(self.step.tree.parents[1:], start=1))
        for name, links in (("next_token", retrieve.next_token), ("next_sibling", retrieve.next_sibling)):
            for node, link in enumerate(links):
                if not -1 <= link < self.width:
                    return f"{name}[{node}] = {link}, must be -1 or in [0, {self.width})"
        try:
            return traverse(np.array(retrieve.next_token), np.array(retrieve.next_sibling))
        except ValueError as error:
            return str(error)

    @cached_property
    def path(self) -> list[int] | None:
        """Accepted nodes, the root first; None where they are no path from the root."""
        path = self.step.local_path
        parents = self.step.tree.parents
        if path[0] != 0 or not all(0 <= node < self.n for node in path):
            return None
        linked = all(parents[node] == above < node for above, node in pairwise(path))
        return path if linked else None

    @property
    def at_depth_limit(self) -> bool:
        """Whether the kernel stopped because a path holds no more than B nodes."""
        return self.header.block_size is not None and len(self.step.accept.index) >= self.header.block_size

    @property
    def node_probs(self) -> list[float] | None:
        """target_prob per node as the acceptance used it, NaN where it is null; None = not recorded."""
        target = self.step.target
        if target is None or target.filtered is None:
            return None
        return [float("nan") if p is None else p for p in target.filtered.node_probs]

    def draft_logprob(self, node: int) -> float | None:
        """Recorded log-probability of a node's token, by depth and rank; None where there is none."""
        ranks = self.step.tree.ranks
        if self.depths is None or ranks is None or node == 0:
            return None
        return self.draft_logprob_at(self.depths[node], ranks[node])

    def draft_logprob_at(self, depth: int, rank: int) -> float | None:
        draft = self.step.draft
        if draft is None or draft.top_logprobs is None or not 1 <= depth <= len(draft.top_logprobs):
            return None
        row = draft.top_logprobs[depth - 1]
        return row[rank] if 0 <= rank < len(row) else None


@dataclass(frozen=True, slots=True)
class Outline:
    """What the rules of a whole trace need to know of each step. Long traces are never held decoded."""

    index: int
    prefix_len: int
    root: int | None
    predicts: list[int]
    bonus: int
    num_accepted: int
    emitted: list[int]
    sound: bool  # rule `shapes` had nothing to say


def outline_of(step: Step, sound: bool) -> Outline:
    root = step.tree.tokens[0] if step.tree.tokens else None
    accept = step.accept
    return Outline(
        step.index,
        step.prefix_len,
        root,
        accept.predicts,
        accept.bonus,
        accept.num_accepted,
        step.emitted,
        sound,
    )


class TraceView:
    """A trace and the outline of each of its steps, in file order."""

    def __init__(self, trace: Trace, outlines: list[Outline]) -> None:
        self.trace, self.outlines = trace, outlines

    @cached_property
    def restarts(self) -> dict[int, int]:
        """Steps before which a prefill stands, by place in the file -> its token."""
        return {place: prefill.token for place, prefill in self.trace.prefills}

    @property
    def whole(self) -> bool:
        """Whether no step is missing that was taken."""
        return not self.trace.dropped and self.trace.damage is None

    @property
    def counted(self) -> bool:
        """Whether the tokens before each step are all there, so that they can be counted."""
        numbered = all(outline.index == place for place, outline in enumerate(self.outlines))
        return self.whole and numbered and bool(self.trace.prefills)

    def pairs(self) -> list[tuple[Outline, Outline]]:
        """Neighbouring steps that the chain must join: none was lost, and no prefill restarted it."""
        return [
            (before, after)
            for place, (before, after) in enumerate(pairwise(self.outlines), start=1)
            if before.sound and after.sound and after.index == before.index + 1 and place not in self.restarts
        ]

    def after_prefill(self) -> list[tuple[Outline, int]]:
        """Steps that follow a prefill directly, and its token."""
        found = []
        for place, token in self.restarts.items():
            if place < len(self.outlines) and self.outlines[place].sound:
                expected = self.outlines[place - 1].index + 1 if place else 0
                if self.outlines[place].index == expected:
                    found.append((self.outlines[place], token))
        return found

    def output(self) -> Iterator[tuple[int, int | None]]:
        """The output's tokens in order, each with the step that emitted it; None = a prefill."""
        prefills = list(self.trace.prefills)
        for place, outline in enumerate(self.outlines):
            while prefills and prefills[0][0] <= place:
                yield prefills.pop(0)[1].token, None
            yield from ((token, outline.index) for token in outline.emitted)
        yield from ((prefill.token, None) for _, prefill in prefills)

    def output_before(self) -> list[int]:
        """How many tokens were out before each step."""
        counts, total = [], 0
        for place, outline in enumerate(self.outlines):
            prefills = sum(before <= place for before, _ in self.trace.prefills)
            counts.append(prefills + total)
            total += len(outline.emitted)
        return counts


def rounding(value: float, digits: int = 5) -> float:
    """Half a unit of the last of `digits` significant digits: how far a displayed value may be off."""
    if value == 0:
        return 0.0
    return float(0.5 * 10.0 ** (np.floor(np.log10(abs(value))) - digits + 1))
