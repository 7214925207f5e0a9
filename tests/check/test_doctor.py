import copy
import dataclasses
import json
import math
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ddviz.check.doctor import (
    MOST_PER_RULE,
    RULES,
    examine,
    examine_path,
)
from ddviz.check.report import print_report, report
from ddviz.errors import DdvizError, TraceError
from ddviz.trace import Recorder, load, schema
from ddviz.tree import DraftTree, build_tree, pack_mask, target_probs, unpack_mask
from tests.check.test_doctor_folder import FOLDER_RULES
from tests.synthetic import Setup, SyntheticEngine, events_of, make_trace, trace_of, write_trace

GREEDY = Setup(stop_token_ids=())
SAMPLED = Setup(temperature=1.0, stop_token_ids=())
ROW = Setup(temperature=1.0, stop_token_ids=(), batch_size=3, row=2, padding=3)
CHAIN = Setup(algorithm="DFLASH", stop_token_ids=())
AR = Setup(algorithm="AR", temperature=1.0, stop_token_ids=())


# ------------------------------------------------------------------ silence on what is right

KINDS = {
    "greedy tree": {},
    "greedy by top_k": {"temperature": 1.0, "top_k": 1},
    "sampled tree": {"temperature": 1.0},
    "filters": {"temperature": 0.7, "top_k": 5, "top_p": 0.9},
    "low thresholds": {"temperature": 1.0, "threshold_acc": 0.5, "threshold_single": 0.6},
    "row of a padded batch": {"temperature": 0.8, "batch_size": 4, "row": 2, "padding": 3},
    "greedy in a mixed batch": {"batch_size": 2, "row": 1, "padding": 1},
    "no cap": {"temperature": 1.0, "topk_cap": 0, "budget": 40},
    "budget of one": {"temperature": 1.0, "budget": 1},
    "every prefix": {"block_size": 3, "budget": 500, "vocab_size": 12, "topk_cap": 0},
    "chain": {"algorithm": "DFLASH"},
    "sampled chain": {"algorithm": "DFLASH", "temperature": 1.0},
    "autoregressive": {"algorithm": "AR"},
    "sampled autoregressive": {"algorithm": "AR", "temperature": 1.0},
    "prefilled twice": {"temperature": 1.0, "retract_before": 2, "stop_token_ids": ()},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_doctor_is_silent_on_clean_traces(kind):
    steps = 0
    for seed in range(6):
        trace = make_trace(Setup(seed=seed, **KINDS[kind]))
        steps += len(trace.steps)
        assert examine(trace) == []
    assert steps > 20


def ngram_trace(temperature, token_0):
    """A root whose child 9 is refused, with two nodes of token 0 for filling; token_0: its target_prob.

    0 ┬ 1 (9)         sampled: coin 0.99 of the root refuses all three, whose mass is 0.2 + token_0
      ├ 2 (0)
      └ 3 (0)
    """
    probs, rows = [None, 0.2, token_0, token_0], {"top_ids": [[5, 9]] * 4, "top_probs": [[0.7, 0.2]] * 4}
    numbers = {"entropy": [0.8] * 4, "logsumexp": [1.0] * 4, "margin": [1.25] * 4}
    target = schema.Target(raw=schema.TargetRows(**rows, **numbers, argmax=[5] * 4, node_probs=probs))
    sampling = None
    if temperature > 0:
        target.filtered = schema.FilteredRows(**rows, node_probs=probs)
        sampling = schema.Sampling(
            coins=[0.99, 0.1, 0.1, 0.1],
            final_coin=0.5,
            residual_sum=float(np.float32(0.8 - token_0)),
            bonus_cdf=0.05,
            bonus_prob=0.7,
        )
    step = schema.Step(
        index=0,
        prefix_len=2,
        batch=schema.Batch(id=1, size=1, row=0, q_len=4),
        tree=schema.Tree(tokens=[7, 9, 0, 0], parents=[-1, 0, 0, 0]),
        retrieve=schema.Retrieve(index=[0, 1, 2, 3], next_token=[1, -1, -1, -1], next_sibling=[-1, 2, 3, -1]),
        target=target,
        sampling=sampling,
        accept=schema.Accept(
            index=[0], num_accepted=0, predicts=[5], bonus=5, kernel="sampled" if sampling else "greedy"
        ),
        emitted=[5],
    )
    header = schema.Header(
        created="2026-11-30T00:00:00+00:00",
        engine=schema.EngineInfo(name="sglang", version="0.5.17"),
        algorithm="NGRAM",
        target="table",
        block_size=4,
        sampling=schema.SamplingParams(temperature=temperature, max_new_tokens=2),
        score_kind="none",
        vocab_size=12,
        request_id="a",
    )
    before = [schema.Tokens(bytes={}), schema.Prompt(token_ids=[1, 2], text=""), schema.Prefill(token=7)]
    return [header, *before, step, schema.End(finish_reason="length", output_ids=[7, 5], steps=1)]


@pytest.mark.parametrize(("temperature", "token_0"), [(0.0, 0.3), (0.0, 0.6), (1.0, 1e-6), (1.0, 0.0)])
def test_what_ngram_fills_its_trees_up_with_is_let_pass_where_it_changes_nothing(temperature, token_0):
    assert examine(trace_of(ngram_trace(temperature, token_0))) == []


def test_what_ngram_fills_its_trees_up_with_is_named_where_it_is_counted_twice():
    """Its mass leaves the residual once, and what siblings sum to is counted once: no other rule speaks."""
    findings = examine(trace_of(ngram_trace(1.0, 0.3)))
    assert {finding.rule for finding in findings} == {"sibling-tokens"}


def test_only_ngram_fills_trees_up():
    header, *rest = ngram_trace(0.0, 0.3)
    other = msgspec.structs.replace(header, algorithm="EAGLE")
    assert {finding.rule for finding in examine(trace_of([other, *rest]))} == {"sibling-tokens"}


def test_the_doctor_is_silent_where_the_optional_parts_are_absent():
    for setup in (GREEDY, ROW, CHAIN, AR):
        events = events_of(setup)
        for step in steps_of(events):
            for name in ("draft", "retrieve", "positions", "slots", "mask", "target", "sampling", "commit"):
                setattr(step, name, None)
            step.tree.ranks = step.tree.scores = None
        assert examine(trace_of(events)) == []


def test_a_step_of_a_large_tree_is_clean_too():
    assert (
        examine(make_trace(Setup(budget=300, topk_cap=0, block_size=16, vocab_size=60, max_new_tokens=4)))
        == []
    )


# ------------------------------------------------------------------ one planted defect each
#
# A defect is planted in the events of a clean trace, or in a stage of the engine that makes them.


def steps_of(events):
    return [event for event in events if isinstance(event, schema.Step)]


def pick(events, condition):
    """The first step, from the second on, that a defect can be planted in."""
    return next(step for step in steps_of(events)[1:-1] if condition(step))


def path_of(step):
    return [flat - step.batch.row * step.batch.q_len for flat in step.accept.index]


def idle_node(step):
    """The last node that is a leaf and neither on the path nor examined."""
    path, parents = path_of(step), step.tree.parents
    idle = [
        i for i in range(1, len(parents)) if i not in path and parents[i] not in path and i not in parents
    ]
    return idle[-1] if idle else None


def idle_step(events):
    return pick(events, idle_node)


def idle_family(step):
    """A node off the path with two children, and these."""
    for parent in set(range(len(step.tree.parents))) - set(path_of(step)):
        children = [i for i, p in enumerate(step.tree.parents) if p == parent]
        if len(children) > 1:
            return parent, *children[:2]
    return None


def refused(step):
    """Children of the last node of the path."""
    return [i for i, parent in enumerate(step.tree.parents) if parent == path_of(step)[-1]]


def shorter_positions(events):
    pick(events, bool).positions.pop()


def a_draft_row_too_many(events):
    draft = pick(events, bool).draft
    draft.top_ids.append(draft.top_ids[0])


def several_nodes_without_a_drafter(events):
    tree = pick(events, bool).tree
    tree.tokens, tree.parents = tree.tokens * 2, [-1, 0]


def a_parent_after_its_child(events):
    step = idle_step(events)
    step.tree.parents[idle_node(step)] = idle_node(step)


def a_root_with_a_parent(events):
    pick(events, bool).tree.parents[0] = 0


def nodes_below_the_last_position(events):
    events[0].block_size = 3
    for step in steps_of(events):
        step.draft = None


def a_token_twice_among_siblings(events):
    step = pick(events, idle_family)
    _, first, second = idle_family(step)
    step.tree.tokens[second] = step.tree.tokens[first]


def a_lost_sibling(events):
    step = pick(events, idle_family)
    step.retrieve.next_sibling[idle_family(step)[1]] = -1


def a_circle_of_siblings(events):
    step = pick(events, idle_family)
    _, first, second = idle_family(step)
    step.retrieve.next_sibling[second] = first


def a_link_to_padding(events):
    step = pick(events, lambda step: -1 in step.retrieve.next_token[: len(step.tree.tokens)])
    step.retrieve.next_token[step.retrieve.next_token.index(-1)] = len(step.tree.tokens)


def a_link_out_of_range(events):
    pick(events, bool).retrieve.next_token[0] = 1000


def siblings_swapped_in_the_links(events):
    step = pick(events, idle_family)
    parent, first, second = idle_family(step)
    links, last = step.retrieve.next_sibling, step.retrieve.next_sibling[second]
    step.retrieve.next_token[parent] = second
    links[second], links[first] = first, last


def a_flat_id_of_another_row(events):
    step = pick(events, lambda step: step.batch.row)
    step.retrieve.index = [flat - step.batch.q_len for flat in step.retrieve.index]


def positions_by_index(events):
    step = pick(events, bool)
    step.positions = [step.prefix_len + node for node in range(step.batch.q_len)]


def positions_of_another_prefix(events):
    step = pick(events, bool)
    step.positions = [position - 1 for position in step.positions]


def a_causal_mask(events):
    step = pick(events, bool)
    step.mask = pack_mask(np.tri(step.batch.q_len, dtype=np.bool_))


def a_sibling_that_is_seen(events):
    step = idle_step(events)
    mask = np.eye(step.batch.q_len, dtype=np.bool_)
    for node, parent in enumerate(step.tree.parents[1:], start=1):
        mask[node] |= mask[parent]
    mask[idle_node(step), idle_node(step) - 1] ^= True
    step.mask = pack_mask(mask)


def two_nodes_in_one_slot(events):
    step = idle_step(events)
    step.slots[idle_node(step)] = step.slots[0]


def a_negative_slot(events):
    step = idle_step(events)
    step.slots[idle_node(step)] = -7


def a_token_beyond_the_vocabulary(events):
    step = idle_step(events)
    step.tree.tokens[idle_node(step)] = 1000


def rising_logprobs(events):
    row = pick(events, bool).draft.top_logprobs[0]
    row[-1] = row[-2] / 2


def a_logprob_that_is_nan(events):
    pick(events, bool).draft.top_logprobs[0][-1] = None


def logprobs_that_are_not_normalised(events):
    draft = pick(events, bool).draft
    draft.top_logprobs[-1] = [x / 1e6 for x in draft.top_logprobs[-1]]


def a_candidate_twice(events):
    row = pick(events, bool).draft.top_ids[0]
    row[-1] = row[-2]


def a_token_of_another_rank(events):
    step = idle_step(events)
    listed = step.target.raw.top_ids[step.tree.parents[idle_node(step)]]  # else the target's rows tell, too
    used = {*listed, *step.tree.tokens}
    step.tree.tokens[idle_node(step)] = next(token for token in range(24) if token not in used)


def a_score_off_by_a_thousandth(events):
    tree = idle_step(events).tree
    tree.scores[-1] -= 0.001


def a_score_of_the_root(events):
    pick(events, bool).tree.scores[0] = 0.5


def nan_in_the_logits(events):
    pick(events, bool).target.nonfinite = 3


def a_probability_that_is_null(events):
    step = idle_step(events)
    step.target.filtered.node_probs[idle_node(step)] = None


def a_residual_that_is_null(events):
    pick(events, bool).sampling.residual_sum = None


def a_probability_above_one(events):
    step = idle_step(events)
    step.target.filtered.node_probs[idle_node(step)] = 1.5


def children_above_one_together(events):
    step = pick(events, idle_family)
    for node in idle_family(step)[1:]:
        step.target.raw.node_probs[node] = 0.7


def local_ids_in_the_accepted_path(events):
    step = pick(events, lambda step: step.accept.num_accepted)
    step.accept.index = path_of(step)


def a_path_off_by_one(events):
    step = pick(events, lambda step: path_of(step)[1:] == [1] and step.tree.parents[2] != 1)
    step.accept.index[1] += len(step.tree.parents) - 2


def a_wrong_count_of_accepted(events):
    pick(events, bool).accept.num_accepted += 1


def another_token_on_the_path(events):
    step = pick(events, lambda step: step.accept.num_accepted)
    step.accept.predicts[0] = (step.accept.predicts[0] + 1) % 24


def another_bonus(events):
    step = pick(events, bool)
    step.accept.bonus = (step.accept.bonus + 1) % 24


def temperature_with_the_greedy_kernel(events):
    events[0].sampling.temperature = 0.8


def no_temperature_with_the_sampling_kernel(events):
    events[0].sampling.temperature = 0.0


def an_argmax_that_was_not_taken(events):
    step = pick(events, bool)
    node = path_of(step)[-1]
    step.target.raw.argmax[node] = (step.target.raw.argmax[node] + 1) % 24


def a_coin_of_one(events):
    step = idle_step(events)
    step.sampling.coins[idle_node(step)] = 1.0


def a_coin_of_another_step(events):
    step = pick(events, lambda step: step.accept.num_accepted and sum(_children_probs(step, 0)) < 0.9)
    step.sampling.coins[0] = 0.95


def a_coin_below_a_refused_child(events):
    step = pick(events, lambda step: refused(step) and min(_children_probs(step, path_of(step)[-1])) > 1e-4)
    step.sampling.coins[path_of(step)[-1]] = 1e-5


def _children_probs(step, node):
    probs = step.target.filtered.node_probs
    return [probs[i] for i, parent in enumerate(step.tree.parents) if parent == node]


def refused_mass_that_stayed(events):
    step = pick(events, lambda step: step.sampling.residual_sum < 0.9)
    step.sampling.final_coin *= step.sampling.residual_sum  # so that the draw itself still fits
    step.sampling.residual_sum = 1.0


def another_final_coin(events):
    step = pick(events, lambda step: step.sampling.bonus_prob < 0.4 * step.sampling.residual_sum)
    step.sampling.final_coin = (step.sampling.final_coin + 0.5) % 1


def a_bonus_that_was_refused(events):
    step = steps_of(events)[-1]
    token = step.tree.tokens[refused(step)[0]]
    step.accept.bonus = step.accept.predicts[-1] = token
    if len(step.emitted) == len(step.accept.predicts):
        step.emitted[-1] = events[-1].output_ids[-1] = token


def a_coin_of_zero_for_a_token_of_probability_zero(events):
    step = pick(events, lambda step: path_of(step)[1:] == [1])
    step.sampling.coins[0] = step.target.filtered.node_probs[1] = 0.0


def a_residual_without_mass(events):
    sampling = pick(events, bool).sampling
    sampling.bonus_prob, sampling.bonus_cdf = 0.0, sampling.final_coin * sampling.residual_sum


def kv_that_was_not_moved(events):
    commit = pick(events, lambda step: path_of(step) != list(range(len(path_of(step))))).commit
    commit.dst_slots = commit.src_slots


def kv_moved_from_the_wrong_slots(events):
    commit = pick(events, lambda step: path_of(step) != list(range(len(path_of(step))))).commit
    commit.src_slots = commit.dst_slots


def a_committed_length_off_by_one(events):
    pick(events, bool).commit.committed_len += 1


def a_hole_in_the_drafters_kv(events):
    positions = pick(events, lambda step: step.accept.num_accepted).commit.draft_kv_positions
    positions[-1] += 1


def a_drafters_kv_that_is_too_long(events):
    pick(events, bool).commit.draft_kv_rows += 2


def a_row_that_is_too_narrow(events):
    commit = pick(events, bool).commit
    commit.row_width = commit.reserved_len - 1


def a_write_beyond_what_is_reserved(events):
    step = pick(events, bool)
    step.commit.reserved_len = step.prefix_len + step.batch.q_len - 1


def rows_of_target_tables_that_differ(events):
    pick(events, bool).target.raw.top_probs[0].pop()


def a_probability_of_another_row(events):
    step = idle_step(events)
    probs = step.target.raw.node_probs
    listed = [i for i in range(1, len(probs)) if is_listed(step, i)]
    probs[listed[-1]] = probs[listed[-1]] / 2


def is_listed(step, node):
    return step.tree.tokens[node] in step.target.raw.top_ids[step.tree.parents[node]]


def a_best_token_that_is_not_the_argmax(events):
    step = idle_step(events)
    row = step.target.raw.top_ids[idle_node(step)]
    row[0], row[1] = row[1], row[0]


def top_probabilities_that_rise(events):
    step = idle_step(events)
    step.target.raw.top_probs[idle_node(step)].reverse()


def a_negative_margin(events):
    step = idle_step(events)
    step.target.raw.margin[idle_node(step)] *= -1


class IgnoresTemperature(SyntheticEngine):
    def filtered(self, logits):
        return target_probs(logits, 1.0)


class TemperatureOfANeighbour(SyntheticEngine):
    def filtered(self, logits):
        return target_probs(logits, 1.3)


class IgnoresTopK(SyntheticEngine):
    def filtered(self, logits):
        return target_probs(logits, self.setup.temperature)


class SecondBest(SyntheticEngine):
    """In a mixed batch, rows of a greedy request are one-hot at the second best token."""

    def filtered(self, logits):
        second = np.argsort(-logits, axis=-1)[..., 1]
        return np.eye(logits.shape[-1], dtype=np.float32)[second]

    def step(self, index):
        step = super().step(index)
        step.target.filtered.top_ids = step.target.filtered.top_probs = None  # as an older engine recorded it
        return step


def best_logits_one_step_apart(events):
    events[0].engine.options = {"dtype": "bfloat16"}
    step = pick(events, bool)
    for margins in (one.target.raw.margin for one in steps_of(events)):
        margins[:] = [10.0] * len(margins)
    step.target.raw.margin[path_of(step)[-1]] = 0.0


def a_slot_that_holds_committed_kv(events):
    step = idle_step(events)
    step.slots[idle_node(step)] = events[3].commit.dst_slots[0]


def a_forward_numbered_again(events):
    step = pick(events, bool)
    step.batch.id = steps_of(events)[0].batch.id


class BlindDrafter(SyntheticEngine):
    """What it drafts has nothing to do with the text."""

    def draft(self):
        tokens = np.tile(np.arange(self.setup.vocab_size)[::-1], (self.setup.block_size - 1, 1))
        logprobs = np.tile(-np.arange(self.setup.vocab_size) - 1.0, (self.setup.block_size - 1, 1))
        return logprobs.astype(np.float32), tokens

    def target_logits(self, beyond):
        logits = super().target_logits(beyond)
        logits[-40:] = -50
        return logits


def a_pause_in_verify(events):
    pick(events, bool).times_us["verify"] = 2000.0


def a_stage_that_becomes_slow(events):
    for step in steps_of(events)[12:]:
        step.times_us["draft"] = 8.0


def a_header_twice(events):
    events.insert(2, events[0])


def a_prompt_twice(events):
    events.insert(2, events[1])


def an_end_twice(events):
    events.append(events[-1])


def no_prompt(events):
    del events[1]


def no_prefill(events):
    del events[2]


def a_prompt_after_the_prefill(events):
    events[1], events[2] = events[2], events[1]


def a_step_after_the_end(events):
    events[-2], events[-1] = events[-1], events[-2]


def a_prefill_after_the_first_step(events):
    events[2], events[3] = events[3], events[2]


def tokens_after_those_who_name_them(events):
    events.insert(4, schema.Tokens(bytes={3: b" word"}))


def no_end(events):
    events.pop()


def an_end_by_an_error(events):
    events[-1].finish_reason, events[-1].message = "error", "out of memory"


def a_dropped_step(events):
    place = events.index(pick(events, bool))
    index = events[place].index
    events[place] = schema.Dropped(first=index, last=index, reason="the disk was slow")


def a_lost_step(events):
    events.remove(pick(events, bool))


def a_step_recorded_twice(events):
    place = events.index(pick(events, bool))
    events.insert(place, copy.deepcopy(events[place]))
    events[0].sampling.max_new_tokens = 1000  # else the doubled tokens would be too many


def another_root(events):
    step = pick(events, bool)
    step.tree.tokens[0] = (step.tree.tokens[0] + 1) % 24


def another_prefill_token(events):
    prefill = next(event for event in events if isinstance(event, schema.Prefill))
    prefill.token = (prefill.token + 1) % 24


def a_prompt_of_another_length(events):
    events[1].token_ids.pop()


def a_token_that_was_not_emitted(events):
    pick(events, bool).emitted.pop()


def a_token_emitted_in_place_of_another(events):
    step = pick(events, bool)
    step.emitted[-1] = (step.emitted[-1] + 1) % 24


def more_tokens_than_asked_for(events):
    events[0].sampling.max_new_tokens -= 1


def a_stop_token_that_was_passed_over(events):
    events[0].sampling.stop_token_ids = [pick(events, bool).emitted[0]]


def an_output_that_lost_a_token(events):
    events[-1].output_ids.pop(3)


def a_wrong_number_of_steps(events):
    events[-1].steps += 1


class LastTwoSwapped(SyntheticEngine):
    """The builder numbers the last two nodes the other way round."""

    def build(self, draft):
        tree = super().build(draft)
        a, b = len(tree) - 2, len(tree) - 1
        if tree.parents[a] == tree.parents[b] or tree.parents[b] == a:
            return tree
        order = [*range(a), b, a]
        return DraftTree(*(getattr(tree, field.name)[order] for field in dataclasses.fields(tree)))


class OverBudget(SyntheticEngine):
    def build(self, draft):
        return build_tree(*draft, self.output[-1], self.setup.budget + 2, self.setup.topk_cap)


class OverCap(SyntheticEngine):
    def build(self, draft):
        return build_tree(*draft, self.output[-1], self.setup.budget, self.setup.topk_cap + 1)


class UnderBudget(SyntheticEngine):
    def build(self, draft):
        return build_tree(*draft, self.output[-1], self.setup.budget - 2, self.setup.topk_cap)


class UnderCap(SyntheticEngine):
    """The whole budget is used, but not on the best nodes."""

    def build(self, draft):
        return build_tree(*draft, self.output[-1], self.setup.budget, self.setup.topk_cap - 1)


class StopsEarly(SyntheticEngine):
    """The kernel was given a smaller path length than the header's B."""

    def verify(self, tree, logits, width):
        asked, self.setup = self.setup, dataclasses.replace(self.setup, block_size=2)
        verdict = super().verify(tree, logits, width)
        self.setup = asked
        return verdict


class BiasedCoin(SyntheticEngine):
    """The kernel compares the square of the coin that is recorded."""

    def verify(self, tree, logits, width):
        acceptance, probs, coins = super().verify(tree, logits, width)
        return acceptance, probs, [*(math.sqrt(coin) for coin in coins[:-1]), coins[-1]]


class Squares:
    """A generator whose uniform numbers are squares, and so too small."""

    def __init__(self, rng):
        self._rng = rng

    def random(self, *args, **kwargs):
        return self._rng.random(*args, **kwargs) ** 2

    def __getattr__(self, name):
        return getattr(self._rng, name)


class SquaredCoins(SyntheticEngine):
    """The coins are squares, as drawn, used and recorded: each step agrees with itself."""

    def verify(self, tree, logits, width):
        fair, self.rng = self.rng, Squares(self.rng)
        try:
            return super().verify(tree, logits, width)
        finally:
            self.rng = fair


class SameCoins(SyntheticEngine):
    """The coins of the first step are used in every step."""

    def verify(self, tree, logits, width):
        going, self.rng = self.rng, np.random.default_rng(3)
        try:
            return super().verify(tree, logits, width)
        finally:
            self.rng = going


class PrefixOneShort(SyntheticEngine):
    """The committed length advances by one less than was committed, once."""

    def step(self, index):
        step = super().step(index)
        self.prefix_len -= index == 2
        return step


LONG = Setup(stop_token_ids=(), max_new_tokens=90)
MIXED = Setup(stop_token_ids=(), batch_size=2, row=1)

# plant, into, rules that must speak: the defect's own, and those that must follow from it
DEFECTS = [
    (shorter_positions, GREEDY, {"shapes"}),
    (a_draft_row_too_many, GREEDY, {"shapes"}),
    (several_nodes_without_a_drafter, AR, {"shapes"}),
    (a_parent_after_its_child, GREEDY, {"parents"}),
    (a_root_with_a_parent, GREEDY, {"parents"}),
    (nodes_below_the_last_position, GREEDY, {"depth-limit"}),
    (a_token_twice_among_siblings, GREEDY, {"sibling-tokens", "draft-tokens"}),
    (a_lost_sibling, GREEDY, {"links"}),
    (a_circle_of_siblings, SAMPLED, {"links"}),
    (a_link_to_padding, ROW, {"links"}),
    (a_link_out_of_range, SAMPLED, {"links"}),
    (siblings_swapped_in_the_links, SAMPLED, {"sibling-order"}),
    (a_flat_id_of_another_row, ROW, {"retrieve-index"}),
    (positions_by_index, GREEDY, {"positions"}),
    (positions_of_another_prefix, ROW, {"positions"}),
    (a_causal_mask, ROW, {"mask"}),
    (a_sibling_that_is_seen, GREEDY, {"mask"}),
    (two_nodes_in_one_slot, GREEDY, {"slots"}),
    (a_negative_slot, GREEDY, {"slots"}),
    (a_token_beyond_the_vocabulary, GREEDY, {"token-range", "draft-tokens"}),
    (rising_logprobs, GREEDY, {"draft-rows"}),
    (a_logprob_that_is_nan, GREEDY, {"draft-rows"}),
    (logprobs_that_are_not_normalised, CHAIN, {"draft-rows", "scores"}),
    (a_candidate_twice, CHAIN, {"draft-rows"}),
    (a_token_of_another_rank, GREEDY, {"draft-tokens"}),
    (a_score_off_by_a_thousandth, GREEDY, {"scores"}),
    (a_score_of_the_root, CHAIN, {"scores"}),
    (LastTwoSwapped, GREEDY, {"pop-order"}),
    (OverBudget, GREEDY, {"budget"}),
    (OverCap, GREEDY, {"budget"}),
    (UnderBudget, SAMPLED, {"best-first"}),
    (UnderCap, SAMPLED, {"best-first"}),
    (nan_in_the_logits, AR, {"nonfinite"}),
    (a_probability_that_is_null, SAMPLED, {"nonfinite"}),
    (a_residual_that_is_null, AR, {"nonfinite"}),
    (a_probability_above_one, SAMPLED, {"node-probs"}),
    (children_above_one_together, GREEDY, {"node-probs", "target-rows"}),
    (local_ids_in_the_accepted_path, ROW, {"accept-index"}),
    (a_path_off_by_one, GREEDY, {"accept-index"}),
    (a_wrong_count_of_accepted, GREEDY, {"accept-index", "prefix-chain"}),
    (another_token_on_the_path, SAMPLED, {"predicts", "emitted"}),
    (another_token_on_the_path, GREEDY, {"predicts", "emitted", "greedy-path"}),
    (another_bonus, GREEDY, {"predicts", "root-chain"}),
    (temperature_with_the_greedy_kernel, GREEDY, {"kernel-choice"}),
    (no_temperature_with_the_sampling_kernel, SAMPLED, {"kernel-choice", "greedy-row"}),
    (rows_of_target_tables_that_differ, GREEDY, {"shapes"}),
    (a_probability_of_another_row, GREEDY, {"target-rows"}),
    (a_best_token_that_is_not_the_argmax, GREEDY, {"target-rows"}),
    (top_probabilities_that_rise, GREEDY, {"target-rows"}),
    (a_negative_margin, GREEDY, {"target-rows"}),
    (IgnoresTemperature, dataclasses.replace(SAMPLED, temperature=0.7), {"filters"}),
    (TemperatureOfANeighbour, dataclasses.replace(ROW, temperature=0.7), {"filters"}),
    (IgnoresTopK, dataclasses.replace(SAMPLED, top_k=3), {"filters"}),
    (SecondBest, MIXED, {"greedy-row"}),
    (best_logits_one_step_apart, GREEDY, {"near-tie"}),
    (a_slot_that_holds_committed_kv, GREEDY, {"kept-slots"}),
    (a_forward_numbered_again, ROW, {"batch-order"}),
    (BlindDrafter, dataclasses.replace(LONG, vocab_size=200), {"accept-collapse"}),
    (SquaredCoins, dataclasses.replace(LONG, temperature=1.0), {"coin-bias"}),
    (SameCoins, dataclasses.replace(LONG, temperature=1.0), {"coin-bias"}),
    (a_pause_in_verify, LONG, {"stage-time"}),
    (a_stage_that_becomes_slow, LONG, {"stage-time"}),
    (an_argmax_that_was_not_taken, GREEDY, {"greedy-path", "target-rows"}),
    (StopsEarly, GREEDY, {"greedy-path"}),
    (StopsEarly, SAMPLED, {"sampled-path", "residual", "bonus-draw"}),
    (a_coin_of_one, SAMPLED, {"coins"}),
    (a_coin_of_another_step, SAMPLED, {"sampled-path"}),
    (a_coin_below_a_refused_child, ROW, {"sampled-path"}),
    (BiasedCoin, SAMPLED, {"sampled-path"}),
    (refused_mass_that_stayed, SAMPLED, {"residual"}),
    (another_final_coin, SAMPLED, {"bonus-draw"}),
    (another_final_coin, AR, {"bonus-draw"}),
    (a_bonus_that_was_refused, SAMPLED, {"bonus-draw"}),
    (a_coin_of_zero_for_a_token_of_probability_zero, SAMPLED, {"zero-probability", "target-rows"}),
    (a_residual_without_mass, AR, {"zero-probability"}),
    (kv_that_was_not_moved, GREEDY, {"commit", "kept-slots"}),
    (kv_moved_from_the_wrong_slots, SAMPLED, {"commit"}),
    (a_committed_length_off_by_one, AR, {"commit"}),
    (a_hole_in_the_drafters_kv, GREEDY, {"draft-kv"}),
    (a_drafters_kv_that_is_too_long, CHAIN, {"draft-kv"}),
    (a_row_that_is_too_narrow, GREEDY, {"row-width"}),
    (a_write_beyond_what_is_reserved, ROW, {"row-width"}),
    (a_header_twice, GREEDY, {"event-order"}),
    (a_prompt_twice, SAMPLED, {"event-order"}),
    (an_end_twice, AR, {"event-order"}),
    (no_prompt, GREEDY, {"event-order"}),
    (no_prefill, SAMPLED, {"event-order"}),
    (a_prompt_after_the_prefill, CHAIN, {"event-order"}),
    (a_step_after_the_end, SAMPLED, {"event-order"}),
    (a_prefill_after_the_first_step, GREEDY, {"event-order", "root-chain", "output-ids"}),
    (tokens_after_those_who_name_them, AR, {"event-order"}),
    (no_end, GREEDY, {"incomplete"}),
    (an_end_by_an_error, GREEDY, {"incomplete"}),
    (a_dropped_step, SAMPLED, {"incomplete"}),
    (a_lost_step, SAMPLED, {"step-index", "output-ids", "step-count"}),
    (a_step_recorded_twice, GREEDY, {"step-index", "output-ids", "step-count"}),
    (another_root, GREEDY, {"root-chain"}),
    (another_prefill_token, GREEDY, {"root-chain", "output-ids"}),
    (PrefixOneShort, SAMPLED, {"prefix-chain", "kept-slots"}),
    (a_prompt_of_another_length, GREEDY, {"prefix-chain"}),
    (a_token_that_was_not_emitted, SAMPLED, {"emitted", "output-ids"}),
    (a_token_emitted_in_place_of_another, SAMPLED, {"emitted", "output-ids"}),
    (more_tokens_than_asked_for, SAMPLED, {"emitted"}),
    (a_stop_token_that_was_passed_over, GREEDY, {"after-stop"}),
    (an_output_that_lost_a_token, GREEDY, {"output-ids"}),
    (a_wrong_number_of_steps, GREEDY, {"step-count"}),
]


def planted(plant, setup):
    """The trace with the defect, from the first seed in which there is a place for it."""
    for seed in range(40):
        setup = dataclasses.replace(setup, seed=seed)
        if isinstance(plant, type):
            return trace_of(plant(setup).run())
        events = copy.deepcopy(events_of(setup))
        try:
            plant(events)
        except (StopIteration, IndexError):
            continue
        return trace_of(events)
    raise AssertionError(f"no seed has a place for {plant.__name__}")


@pytest.mark.parametrize(
    ("plant", "setup", "expected"), DEFECTS, ids=[f"{p.__name__}-{s.algorithm}" for p, s, _ in DEFECTS]
)
def test_a_planted_defect_is_found_and_only_what_follows_from_it(plant, setup, expected):
    findings = examine(planted(plant, setup))
    assert {finding.rule for finding in findings} == expected, report({Path("planted"): findings}).plain


def test_every_rule_has_a_defect_that_it_finds():
    """Those of folders have theirs in test_doctor_folder.py, which names them in FOLDER_RULES."""
    found = set().union(*(expected for _, _, expected in DEFECTS))
    assert set(RULES) == found | FOLDER_RULES
    assert {name for name, rule in RULES.items() if rule.scope == "folder"} == FOLDER_RULES


def test_the_order_of_events_is_told_as_it_was_met():
    trace = make_trace(GREEDY)
    trace.kinds = [kind for kind in trace.kinds if kind not in ("tokens", "prompt", "prefill")]
    assert [finding.message for finding in examine(trace)] == [
        "the first step has no tokens before it: there is none",
        "the first step has no prompt before it: there is none",
        "the first step has no prefill before it: there is none",
    ]
    trace.kinds = []  # a trace made in memory
    assert examine(trace) == []


def test_two_traces_in_one_file_are_told(tmp_path):
    path = write_trace(tmp_path / "x.ddviz", GREEDY)
    assert load(path).kinds[:3] == ["header", "tokens", "prompt"]
    path.write_bytes(2 * path.read_bytes())
    messages = [finding.message for finding in examine(load(path)) if finding.rule == "event-order"]
    assert messages[:3] == [f"there are 2 {kind} events, must be 1" for kind in ("header", "prompt", "end")]
    assert messages[3].endswith("events come after the end, the first is header") and len(messages) == 4


def test_an_engine_without_a_tokenizer_and_a_request_that_came_to_nothing_are_in_order(tmp_path):
    header, prompt, prefill, *_ = events_of(GREEDY)
    with Recorder(tmp_path / "x.ddviz", header, lambda token: None) as recorder:
        recorder.prompt(prompt.token_ids, prompt.text)
        recorder.prefill(prefill)
        recorder.end(schema.End(finish_reason="stopped", output_ids=[prefill.token], steps=0))
    assert load(recorder.path).kinds == ["header", "tokens", "prompt", "prefill", "end"]
    assert examine(load(recorder.path)) == []
    with Recorder(tmp_path / "x.ddviz", header, lambda token: None, overwrite=True) as recorder:
        recorder.prompt([], "")
        recorder.end(schema.End(finish_reason="error", output_ids=[], steps=0, message="no memory"))
    assert {finding.rule for finding in examine(load(recorder.path))} == {"incomplete"}


# ------------------------------------------------------------------ what a finding tells


def test_a_finding_names_the_step_the_node_the_values_and_the_likely_cause():
    (first, *_) = examine(planted(positions_by_index, GREEDY))
    prefix = planted(positions_by_index, GREEDY).steps[1].prefix_len
    assert (first.rule, first.step, first.node) == ("positions", 1, 2)
    assert (
        first.message == f"positions[2] = {prefix + 2}, must be {prefix + 1} (prefix_len {prefix} + depth 1)"
    )
    assert first.cause == "positions go by node index (the KV slot) instead of depth"
    assert "node_positions" in first.look_at


@pytest.mark.parametrize(
    ("plant", "setup", "cause"),
    [
        (a_causal_mask, GREEDY, "causal"),
        (positions_of_another_prefix, ROW, "off by -1"),
        (StopsEarly, SAMPLED, "path limit S is below B"),
    ],
)
def test_a_known_pattern_of_values_names_its_cause(plant, setup, cause):
    assert cause in examine(planted(plant, setup))[0].cause


def test_a_mask_with_rows_and_columns_swapped_is_recognised():
    events = events_of(GREEDY)
    step = pick(events, bool)
    step.mask = pack_mask(unpack_mask(step.mask, step.batch.q_len).T)
    assert {finding.cause for finding in examine(trace_of(events))} == {"rows and columns are swapped"}


def test_the_earliest_step_comes_first_then_the_earliest_stage():
    events = events_of(GREEDY)
    for step in steps_of(events)[1:3]:
        step.commit.committed_len += 1
        step.slots[-1] = step.slots[0]
    found = [(finding.step, finding.rule) for finding in examine(trace_of(events))]
    assert found == [(1, "slots"), (1, "commit"), (2, "slots"), (2, "commit")]


def test_a_rule_that_speaks_often_is_cut_off_and_counted():
    events = events_of(dataclasses.replace(GREEDY, max_new_tokens=60))
    for step in steps_of(events):
        step.positions = [position + 1 for position in step.positions]
    *shown, more = examine(trace_of(events))
    total = sum(len(step.tree.tokens) for step in steps_of(events))
    assert len(shown) == MOST_PER_RULE
    assert (more.rule, more.step, more.more) == ("positions", None, total - MOST_PER_RULE)
    assert more.message == f"and {total - MOST_PER_RULE} more"
    assert f"and {total - 3} more" in report({Path("x"): [*shown, more]}).plain


def test_chosen_rules_alone_are_examined():
    trace = planted(another_token_on_the_path, GREEDY)
    assert {finding.rule for finding in examine(trace, ["predicts", "mask"])} == {"predicts"}
    assert examine(trace, []) == []


def test_shapes_silence_a_step_even_where_they_were_not_asked_for():
    assert examine(planted(shorter_positions, GREEDY), ["positions", "commit"]) == []


def test_a_name_that_is_no_rule_is_an_error_that_lists_them():
    with pytest.raises(DdvizError, match="'masks' is no rule of the doctor; the rules are shapes, parents"):
        examine(make_trace(AR), ["masks"])


def test_a_rule_holds_for_the_algorithms_it_names():
    trace = planted(UnderBudget, SAMPLED)
    trace.header.algorithm = "EAGLE"
    assert examine(trace) == []


# ------------------------------------------------------------------ files, folders, the report


def test_a_folder_is_examined_to_the_bottom_in_order_of_names(tmp_path):
    (tmp_path / "b").mkdir()
    write_trace(tmp_path / "b" / "late.ddviz", GREEDY)
    write_trace(tmp_path / "a.ddviz", SAMPLED)
    (tmp_path / "c.ddviz").write_bytes(b"no trace")
    (tmp_path / "notes.txt").write_text("not looked at")
    results = examine_path(tmp_path)
    names = [path.relative_to(tmp_path).as_posix() for path in results]
    assert names == ["a.ddviz", "b/late.ddviz", "c.ddviz"]
    (bad,) = results[tmp_path / "c.ddviz"]
    assert bad.rule == "incomplete"
    assert "not a .ddviz trace" in bad.message
    assert results[tmp_path / "a.ddviz"] == results[tmp_path / "b" / "late.ddviz"] == []


def test_what_is_no_trace_and_a_folder_without_one_are_errors(tmp_path):
    for path in (tmp_path, tmp_path / "absent.ddviz"):
        with pytest.raises(TraceError):
            examine_path(path)


def test_a_file_cut_anywhere_is_incomplete_and_nothing_else(tmp_path):
    whole = write_trace(tmp_path / "whole.ddviz", SAMPLED).read_bytes()
    cut = tmp_path / "cut.ddviz"
    for size in range(len(whole) // 3, len(whole), len(whole) // 17):
        cut.write_bytes(whole[:size])
        assert {finding.rule for finding in examine_path(cut)[cut]} == {"incomplete"}


def test_the_report_tells_what_is_clean_and_what_is_not(capsys):
    results = {Path("good.ddviz"): [], Path("bad.ddviz"): examine(planted(kv_that_was_not_moved, GREEDY))}
    text = report(results).plain
    assert "good.ddviz: clean\n" in text
    assert "bad.ddviz: 2 findings\n  commit  must hold: The KV of the accepted nodes goes" in text
    assert "likely cause: accepted KV was left" in text
    assert "look at: commit.src_slots" in text
    assert "2 traces examined, 1 clean" in text
    assert print_report(results) == 1
    assert capsys.readouterr().out == text
    assert print_report({Path("good.ddviz"): []}) == 0


def test_findings_are_json_too(capsys):
    findings = examine(planted(a_wrong_number_of_steps, GREEDY))
    assert print_report({Path("bad.ddviz"): findings}, as_json=True) == 1
    (told,) = json.loads(capsys.readouterr().out)["bad.ddviz"]
    assert told["rule"] == "step-count"
    assert told["step"] is None


def test_what_a_trace_brings_in_cannot_command_the_terminal():
    trace = make_trace(GREEDY)
    trace.end.finish_reason, trace.end.message = "error", "[red]\x1b[2Jgone\u202e"
    plain = report({Path("\x1b]0;title\x07.ddviz"): examine(trace)}).plain
    assert "[red]⟨U+001B⟩[2Jgone⟨U+202E⟩" in plain
    assert "\x1b" not in plain


# ------------------------------------------------------------------ nothing makes it raise

NUMBERS = [-(2**70), -(2**31), -2, -1, 0, 1, 2, 3, 7, 1000, 2**31, 2**63, 2**70]
VALUES = [*NUMBERS, 0.5, -0.0, 1e300, -1e300, 1e-320, None, "x", [], [0], {}, "greedy", "sampled"]


def mutate(rng, node):
    """Change one place in a tree of dicts and lists: a value, an order, a length, or its presence."""
    places = list(node) if isinstance(node, dict) else range(len(node))
    place = rng.choice(places)
    below = node[place]
    if isinstance(below, dict | list) and below and rng.random() < 0.85:
        mutate(rng, below)
    elif isinstance(node, list) and rng.random() < 0.4:
        rng.choice([node.pop, node.reverse, node.clear, lambda: node.append(node[0])])()
    elif isinstance(node, dict) and rng.random() < 0.3:
        del node[place]
    else:
        node[place] = rng.choice(VALUES)


def mutated(rng, lines):
    """Events with some damage that still decode, so a file can hold them."""
    events = copy.deepcopy(lines)
    for _ in range(rng.randint(1, 6)):
        place = rng.choice([0, *range(len(events))])
        before = copy.deepcopy(events[place])
        mutate(rng, events[place])
        try:
            decoded = msgspec.convert(events[place], schema.AnyEvent)
            msgspec.json.encode(decoded)
        except (msgspec.ValidationError, OverflowError):
            events[place] = before
    decoded = [msgspec.convert(event, schema.AnyEvent) for event in events]
    return decoded if isinstance(decoded[0], schema.Header) else None


@pytest.mark.parametrize("setup", [GREEDY, ROW, CHAIN, AR], ids=["tree", "sampled row", "chain", "ar"])
def test_no_damage_to_the_values_of_a_trace_makes_the_doctor_raise(setup):
    rng = random.Random(0)
    setup = dataclasses.replace(setup, max_new_tokens=9)
    lines = [msgspec.to_builtins(event) for event in events_of(setup)]
    found = set()
    for _ in range(120):
        events = mutated(rng, lines)
        if events is None:
            continue
        trace = trace_of(events)
        findings = examine(trace)
        report({Path("x"): findings})
        found |= {finding.rule for finding in findings}
    assert len(found) > 8  # the damage was seen, too


def test_a_trace_made_in_memory_with_holes_for_numbers_is_a_finding():
    trace = make_trace(SAMPLED)
    steps = list(trace.steps)
    steps[1].sampling.coins[0] = None
    steps[2].sampling.final_coin = None
    trace.steps = steps
    assert [(finding.rule, finding.step) for finding in examine(trace)] == [("coins", 1), ("coins", 2)]
