"""What the doctor's rules look at: a step with what follows from it, a trace in outline, a folder.

In:  Header and Step, or a Trace.
Out: StepView, TraceView, FolderView.
Not here: any judgement (rules_*.py).

A derived value is None where the arrays it follows from are absent or wrong. So a rule that needs the path is
silent where the path itself is the fault, and the reader gets the cause without its echoes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddviz.analysis.batch import Places, may_share
from ddviz.trace.reader import Trace
from ddviz.trace.schema import Batch, Header, Step
from ddviz.tree import depths_of, traverse

FLOAT32_ULP = 2.0**-23
COIN_BINS = 8  # of Outline.coins
Table = NDArray[np.float64]
_LOWEST = 340  # -340 is below the least power of ten that float64 has, and 308 is the greatest
_HALVES = 0.5 * 10.0 ** np.arange(-_LOWEST, 309, dtype=np.float64)  # np.power takes ten times as long


class StepView:
    """One step. Beyond `step` itself, all of it takes the lengths for granted: see rule `shapes`."""

    def __init__(self, header: Header, step: Step) -> None:
        self.header, self.step = header, step

    @cached_property
    def n(self) -> int:
        return len(self.step.tree.tokens)

    @cached_property
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
            if links and not (min(links) >= -1 and max(links) < self.width):
                node = next(node for node, link in enumerate(links) if not -1 <= link < self.width)
                return f"{name}[{node}] = {links[node]}, must be -1 or in [0, {self.width})"
        try:
            return traverse(retrieve.next_token, retrieve.next_sibling)
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

    @cached_property
    def node_probs(self) -> list[float] | None:
        """target_prob per node as the acceptance used it, NaN where it is null; None = not recorded."""
        target = self.step.target
        if target is None or target.filtered is None:
            return None
        return [float("nan") if p is None else p for p in target.filtered.node_probs]

    @cached_property
    def draft_table(self) -> Table | None:
        """Recorded log-probabilities [B-1, K], NaN where one is null; None = not recorded."""
        draft = self.step.draft
        return None if draft is None or not draft.top_logprobs else table_of(draft.top_logprobs)

    @cached_property
    def draft_logprobs(self) -> Table | None:
        """Of the tokens of the nodes [n], by depth and rank; NaN where there is none, as for the root."""
        table, ranks = self.draft_table, self.step.tree.ranks
        if table is None or self.depths is None or ranks is None:
            return None
        rows, columns = np.array(self.depths) - 1, np.array(ranks, np.float64)
        known = (rows >= 0) & (rows < len(table)) & (columns >= 0) & (columns < table.shape[1])
        found = np.full(self.n, np.nan)
        found[known] = table[rows[known], columns[known].astype(np.intp)]
        return found

    @cached_property
    def draft_rounding(self) -> Table | None:
        """How far each of draft_logprobs may be off."""
        return None if self.draft_logprobs is None else rounding(self.draft_logprobs)

    @cached_property
    def raw_tops(self) -> Table | None:
        """Probabilities [n, m] of the best tokens of the raw rows; None = not recorded."""
        return None if self.step.target is None else table_of(self.step.target.raw.top_probs)

    @cached_property
    def filtered_tops(self) -> Table | None:
        target = self.step.target
        if target is None or target.filtered is None or target.filtered.top_probs is None:
            return None
        return table_of(target.filtered.top_probs)


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
    n: int
    drafted: bool | None  # the target's argmax after the root is among the draft's candidates; None = unknown
    batch: Batch | None
    slots: list[int]  # of its nodes
    kept: list[int]  # slots that hold committed KV from this step on
    times_us: dict[str, float]
    coins: list[int]  # how many lie in each of COIN_BINS equal parts of [0, 1); [] = none
    sound: bool  # rule `shapes` had nothing to say


def outline_of(step: Step, sound: bool) -> Outline:
    tree, accept, commit = step.tree, step.accept, step.commit
    return Outline(
        step.index,
        step.prefix_len,
        tree.tokens[0] if tree.tokens else None,
        accept.predicts,
        accept.bonus,
        accept.num_accepted,
        step.emitted,
        len(tree.tokens),
        _is_drafted(step) if sound else None,
        step.batch,
        (step.slots or [])[: len(tree.tokens)],
        commit.dst_slots if commit is not None else [],
        step.times_us,
        _coin_counts(step),
        sound,
    )


def _coin_counts(step: Step) -> list[int]:
    if step.sampling is None:
        return []
    counts = [0] * COIN_BINS
    for coin in (*step.sampling.coins, step.sampling.final_coin):
        if coin is not None and 0 <= coin < 1:  # else rule coins
            counts[int(coin * COIN_BINS)] += 1
    return counts


def _is_drafted(step: Step) -> bool | None:
    if step.draft is None or not step.draft.top_ids or step.target is None:
        return None
    return step.target.argmax[0] in step.draft.top_ids[0]


class TraceView:
    """A trace and the outline of each of its steps, in file order."""

    def __init__(self, trace: Trace, outlines: list[Outline], growing: bool = False) -> None:
        self.trace, self.outlines = trace, outlines
        self.growing = growing  # an engine is still writing it

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


class Resident(NamedTuple):
    """A trace as its neighbours in a folder see it: when it was under way, and where its KV lay."""

    folder: Path
    name: str
    places: Places
    outlines: list[Outline]
    restarts: frozenset[int]  # places of the steps before which a prefill stands


class FolderView:
    """The traces of a folder."""

    def __init__(self, residents: list[Resident]) -> None:
        self.residents = residents

    def servers(self) -> list[list[int]]:
        """Places of traces that shared forwards of one server, directly or through others; none alone.

        Where two of them name one forward that can't have been the same, traces of several servers lie in the
        folder, and it can't be told which is whose: they are left out.
        """
        group, apart = list(range(len(self.residents))), set[int]()
        order = sorted(group, key=lambda place: self.residents[place].places.created)
        for k, a in enumerate(order):
            for b in order[k + 1 :]:
                if self.residents[b].places.created > self.residents[a].places.changed:
                    break
                shared = self._shared(a, b)
                if shared is False:
                    apart |= {a, b}
                elif shared and group[a] != group[b]:
                    group = [group[a] if number == group[b] else number for number in group]
        servers = [[place for place in order if group[place] == number] for number in dict.fromkeys(group)]
        return [server for server in servers if len(server) > 1 and not apart & set(server)]

    def _shared(self, a: int, b: int) -> bool | None:
        """Whether all forwards that two traces name by one id can have been the same; None: there is none."""
        one, other = self.residents[a], self.residents[b]
        both = one.places.by_batch.keys() & other.places.by_batch.keys()
        is_one_engine = (one.places.engine, one.places.models) == (other.places.engine, other.places.models)
        if not both or one.folder != other.folder or not is_one_engine:
            return None
        return all(may_share(one.places, other.places, one.places.by_batch[id].batch) for id in both)


def table_of(rows: Sequence[Sequence[float | None]]) -> Table:
    """Rows of one length as float64, null as NaN."""
    shape = len(rows), len(rows[0])
    try:  # a third of the time that np.array takes, which looks at everything twice
        return np.fromiter(chain.from_iterable(rows), np.float64, shape[0] * shape[1]).reshape(shape)  # type: ignore[arg-type]
    except TypeError:
        return np.array(rows, np.float64)


def rounding(values: Table, digits: int = 5) -> Table:
    """Half a unit of the last of `digits` significant digits: how far a displayed value may be off."""
    powers = np.floor(np.log10(np.abs(values)))
    known = np.isfinite(powers)  # not of 0 and NaN
    halves = _HALVES[np.where(known, powers - digits + 1, 0).astype(np.intp) + _LOWEST]
    return np.where(known, halves, np.where(values == 0, 0.0, np.nan))
