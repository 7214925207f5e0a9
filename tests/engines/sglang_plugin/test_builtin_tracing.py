"""SGLang's own algorithms as the hooks see them, on the CPU: each step calls the hooked functions in the
order of 0.5.17 and with tensors shaped as there, twins in place of its kernels, a model that is a table.
What was traced must pass the doctor, and a fault of the engine's must be in the trace.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ddviz.check.doctor import examine
from ddviz.engines.sglang_plugin.tracing import reading
from ddviz.engines.sglang_plugin.tracing.builtin import dflash, eagle, kernels, start, target
from ddviz.engines.sglang_plugin.tracing.builtin.step import UNSEEN, UnderWay
from ddviz.trace import load
from ddviz.trace.render import render_step
from ddviz.tree import compile_ddtree_retrieve, node_positions, target_probs, tree_mask
from tests.engines.sglang_plugin import twins
from tests.engines.sglang_plugin.test_tracing import STOP, request

VOCABULARY, ROW_WIDTH = 24, 128

# EAGLE, topk 2, 3 steps: 0 ┬ 1 ┬ 3 ─ 5      NGRAM, 6 nodes: 0 ┬ 1 ─ 2      DFLASH, B = 4: 0 ─ 1 ─ 2 ─ 3
#                           └ 2 └ 4                            ├ 3
#                                                              ├ 4            3, 4, 5: what it fills up
#                                                              └ 5            with, token 0
PARENTS = {
    "EAGLE": [-1, 0, 0, 1, 1, 3],
    "NGRAM": [-1, 0, 1, 0, 0, 0],
    "DFLASH": [-1, 0, 1, 2],
}
PATH_LEN = {"EAGLE": 4, "NGRAM": 6, "DFLASH": 4}


class Engine:
    """A scheduler with one worker. `spoil` may change what the worker is about to give to a kernel."""

    def __init__(self, folder, algorithm):
        self.algorithm, self.folder = algorithm, folder
        self.parents = np.array(PARENTS[algorithm], np.int32)
        self.width, self.path_len = len(self.parents), PATH_LEN[algorithm]
        self.tracer = twins.new_builtin_tracer(folder, algorithm, self.path_len, VOCABULARY, ROW_WIDTH)
        generator = torch.Generator().manual_seed(1)
        self.table = torch.randn((VOCABULARY, VOCABULARY), generator=generator) * 2
        self.draft = self.table + torch.randn((VOCABULARY, VOCABULARY), generator=generator)
        self.table[:, STOP] -= 30  # NGRAM fills its trees up with it
        self.rows = torch.arange(8 * ROW_WIDTH, dtype=torch.int64).view(8, ROW_WIDTH) + 1
        self.coins = torch.Generator().manual_seed(2)
        self.buffers = {}  # of DFLASH, which are used again by every step
        self.moves = []
        self.forwards = 0
        self.spoil = lambda given: None
        self.worker = SimpleNamespace(forward_batch_generation=self._step)
        start.note_steps(self.worker, self.tracer)

    def run(self, reqs, batch_more=None):
        """With overlap: a step is launched before the last one's result is taken."""
        for i, req in enumerate(reqs):
            req.length, req.pool_index = len(req.origin_input_ids), i
            req.take([int(self.table[req.origin_input_ids[-1]].argmax())])
            req.root = req.output_ids[-1]
        self.tracer.prefilled(reqs)
        under_way = None
        while any(not req.finished() for req in reqs):
            launched = self.worker.forward_batch_generation(self._batch(reqs, batch_more or {}))
            tokens = launched.next_token_ids.view(len(reqs), -1)
            taken = [row[:n].tolist() for row, n in zip(tokens, launched.accept_lens.tolist(), strict=True)]
            if under_way:
                twins.settle(self.tracer, reqs, *under_way)
            under_way = launched, taken
            for i, req in enumerate(reqs):
                req.length, req.root = int(launched.new_seq_lens[i]), taken[i][-1]
        twins.settle(self.tracer, reqs, *under_way)
        assert UnderWay.step is None
        self.tracer.writer.close(30)
        return {load(path).header.request_id: load(path) for path in sorted(self.folder.glob("*.ddviz"))}

    def _batch(self, reqs, more):
        self.forwards += 1
        greedy = all(req.sampling_params.top_k == 1 for req in reqs)
        info = {"is_all_greedy": greedy, "logit_bias": None, "has_custom_logit_processor": False, **more}
        return SimpleNamespace(
            reqs=reqs,
            seq_lens=torch.tensor([req.length for req in reqs]),
            forward_iter=self.forwards,
            forward_mode=SimpleNamespace(is_decode=lambda: True),
            is_extend_in_batch=False,
            has_grammar=False,
            sampling_info=SimpleNamespace(**info),
        )

    def _step(self, batch):
        bs, width, lens = len(batch.reqs), self.width, batch.seq_lens
        tokens = self._tokens(torch.tensor([req.root for req in batch.reqs]))
        if self.algorithm == "EAGLE":
            self._organize(tokens)
        depths = np.array([0] * width)
        for node, parent in enumerate(self.parents[1:], 1):
            depths[node] = depths[parent] + 1
        given = SimpleNamespace(
            tokens=tokens,
            links=[self._links(name, bs) for name in ("index", "next_token", "next_sibling")],
            positions=torch.tensor(np.concatenate([node_positions(int(n), depths) for n in lens])),
            slots=torch.cat([self.rows[b, n : n + width] for b, n in enumerate(lens)]),
            mask=self._mask(lens),
        )
        self.spoil(given)
        logits = self._verify(batch, given)
        info = batch.sampling_info
        if info.logit_bias is not None:  # in place, as eagle_sample does
            logits.add_(info.logit_bias.repeat_interleave(width, dim=0))
        path, count, predicts = self._accept(batch, given, logits)
        lens_now = lens + count + 1
        if self.algorithm == "DFLASH":
            positions = given.positions
            dflash.note_appended(lambda *_, **__: None, None, positions=positions, commit_lens=count + 1)
            return self._result(predicts, count, lens_now, bonus=True)
        local = path.clamp(min=0).long()
        self._move(batch, given, path, count)
        said = predicts[local]
        if self.algorithm == "NGRAM":
            return self._result(said.flatten(), count, lens_now, bonus=False)
        compact = predicts.view(bs, width).clone()
        compact[:, : self.path_len] = said
        return self._result(compact.flatten(), count, lens_now, bonus=True)

    def _result(self, said, count, lens, bonus):
        last = said.view(len(count), -1).gather(1, count.long().unsqueeze(1)).squeeze(1)
        return SimpleNamespace(
            next_token_ids=said,
            accept_lens=count + 1,
            new_seq_lens=lens,
            can_run_cuda_graph=False,
            next_draft_input=SimpleNamespace(**({"bonus_tokens": last.clone()} if bonus else {})),
        )

    def _tokens(self, roots):
        """[bs, T] what drafting from the table gives; a child's rank is its place among its siblings."""
        tokens = torch.zeros((len(roots), self.width), dtype=torch.int64)
        tokens[:, 0] = roots
        for node in range(1, self.width):
            rank = int((self.parents[:node] == self.parents[node]).sum())
            above = tokens[:, self.parents[node]]
            tokens[:, node] = self.draft[above].topk(self.width, dim=-1).indices[:, rank]
        if self.algorithm == "NGRAM":
            tokens[:, 3:] = STOP
        return tokens

    def _links(self, name, bs):
        rows = [getattr(compile_ddtree_retrieve(self.parents, b), name) for b in range(bs)]
        return torch.tensor(np.stack(rows))

    def _mask(self, lens):
        """EAGLE and NGRAM: flat, T rows of committed length + T; DFLASH has none."""
        if self.algorithm == "DFLASH":
            return None
        tree = torch.tensor(tree_mask(self.parents))
        seen = [torch.cat([torch.ones((self.width, int(n)), dtype=bool), tree], 1).flatten() for n in lens]
        return torch.cat(seen)

    def _organize(self, tokens):
        """EAGLE's last lines of drafting: scores of all drafted nodes, and which of them are taken."""
        bs = len(tokens)
        self.scores = torch.tensor([0.6, 0.3, 0.4, 0.1, 0.2]).expand(bs, -1)
        drafted = torch.cat([self.scores, torch.zeros((bs, 1))], 1).view(bs, 3, 2)
        answer = (None, torch.arange(5).expand(bs, -1), tokens[:, 1:])
        eagle.note_scores(lambda *_: answer, [drafted[:, :1], drafted[:, 1:]], None, None, self.width)

    def _verify(self, batch, given):
        """NGRAM gives the ScheduleBatch, the others a ForwardBatch."""
        spec = SimpleNamespace(positions=given.positions, custom_mask=given.mask)
        forward = SimpleNamespace(input_ids=given.tokens.flatten(), out_cache_loc=given.slots, spec_info=spec)
        batch_given, forward_given = (forward, None) if self.algorithm == "NGRAM" else (None, forward)
        worker = SimpleNamespace(model_runner=SimpleNamespace(attn_backend=SimpleNamespace(verify_mask=None)))
        logits = self.table[given.tokens.flatten()].clone()
        out = SimpleNamespace(
            logits_output=SimpleNamespace(next_token_logits=logits), can_run_cuda_graph=False
        )
        target.note_verified(lambda *_, **__: out, worker, batch_given, forward_given, is_verify=True)
        return logits

    def _accept(self, batch, given, logits):
        """accept_index, num_accepted and predicts; DFLASH: the tokens that it says."""
        bs, width = given.tokens.shape
        best = logits.argmax(-1).view(bs, width)
        if batch.sampling_info.is_all_greedy and self.algorithm == "DFLASH":
            return self._chain(given.tokens, best)
        index, next_token, next_sibling = given.links
        shared = {
            "predicts": self._buffer("predicts", (bs * width,)),
            "accept_index": self._buffer("accept_index", (bs, self.path_len)),
            "accept_token_num": torch.empty(bs, dtype=torch.int32),
            "candidates": given.tokens,
            "retrive_index": index,
            "retrive_next_token": next_token,
            "retrive_next_sibling": next_sibling,
        }
        if batch.sampling_info.is_all_greedy:
            kernels.note_accepted(twins.verify_tree_greedy, **shared, target_predict=best)
        else:
            rows = logits.view(bs, width, -1).numpy()
            temperatures = [req.sampling_params.temperature for req in batch.reqs]
            probs = np.stack([target_probs(row, t) for row, t in zip(rows, temperatures, strict=True)])
            kernels.note_accepted(
                twins.tree_speculative_sampling_target_only,
                **shared,
                uniform_samples=torch.rand((bs, width), generator=self.coins),
                uniform_samples_for_final_sampling=torch.rand(bs, generator=self.coins),
                target_probs=torch.from_numpy(probs),
                draft_probs=torch.zeros(probs.shape),
            )
        path, count, predicts = (shared[k] for k in ("accept_index", "accept_token_num", "predicts"))
        if self.algorithm == "DFLASH":  # says candidates, then the bonus
            said = torch.cat([given.tokens[:, 1:], torch.zeros((bs, 1), dtype=torch.int64)], 1)
            at = path.gather(1, count.long().unsqueeze(1)).long()
            said.scatter_(1, count.long().unsqueeze(1), predicts[at].long())
            return path, count, said.flatten()
        return path, count, predicts

    def _buffer(self, name, shape):
        """EAGLE's are new and cleared; DFLASH's are the last step's, never cleared."""
        if self.algorithm != "DFLASH":
            return torch.full(shape, -1 if name == "accept_index" else 0, dtype=torch.int32)
        return self.buffers.setdefault(name, torch.full(shape, 7777, dtype=torch.int32))

    def _chain(self, tokens, best):
        matches = (tokens[:, 1:] == best[:, :-1]).int().cumprod(dim=1).sum(dim=1).int()
        answers = self.buffers.setdefault("answers", [torch.empty(0)] * 2)
        answers[0], answers[1] = matches.clone(), tokens.roll(-1, 1).clone()
        answers[1].scatter_(1, matches.long().unsqueeze(1), best.gather(1, matches.long().unsqueeze(1)))

        def kernel(candidates, target_top1, accept_lens_out, out_tokens_out):
            pass

        dflash.note_chain(kernel, tokens, best, accept_lens_out=answers[0], out_tokens_out=answers[1])
        said, count = answers[1].flatten().clone(), matches.clone()
        answers[0].fill_(99)  # the next step's replay
        answers[1].fill_(99)
        return None, count, said

    def _move(self, batch, given, path, count):
        """EAGLE and NGRAM pack the accepted rows: all requests' one behind the other."""
        steps = [range(n + 1) for n in count.tolist()]
        sources = [given.slots[int(path[b, i])] for b, own in enumerate(steps) for i in own]
        front = [self.rows[b, int(batch.seq_lens[b]) + i] for b, own in enumerate(steps) for i in own]
        tail = [torch.tensor(0)] * (path.numel() - len(sources))
        pool = SimpleNamespace(move_kv_cache=lambda to, of: self.moves.append((to, of)))

        def move(batch, accept_index, num_correct_drafts, token_to_kv_pool_allocator):
            cache = token_to_kv_pool_allocator.get_kvcache()
            cache.move_kv_cache(torch.stack(front + tail), torch.stack(sources + tail))

        eagle.note_move(move, batch, path, count, SimpleNamespace(get_kvcache=lambda: pool))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("algorithm", PARENTS)
def test_traces_pass_the_doctor_and_end_in_what_was_said(tmp_path, algorithm, temperature):
    engine = Engine(tmp_path, algorithm)
    reqs = [request(name, temperature, max_new_tokens=n) for name, n in (("a", 16), ("b", 9), ("c", 13))]
    traces = engine.run(reqs)
    assert engine.tracer.failures == 0
    assert sum(step.accept.num_accepted for trace in traces.values() for step in trace.steps) > 3
    for req in reqs:
        trace = traces[req.rid]
        assert examine(trace) == []
        assert trace.end.output_ids == req.output_ids_through_stop
        step = trace.steps[0]
        assert step.tree.parents == PARENTS[algorithm]
        assert step.accept.kernel == ("sampled" if temperature else "greedy")
        assert (step.batch.row, step.batch.q_len) == (reqs.index(req), engine.width)
        assert step.draft is None and step.tree.ranks is None
        assert render_step(trace, 0)


def test_an_eagle_step_holds_the_scores_of_its_draft(tmp_path):
    trace = Engine(tmp_path, "EAGLE").run([request("a")])["a"]
    assert trace.steps[0].tree.scores == pytest.approx([1.0, 0.6, 0.3, 0.4, 0.1, 0.2])
    assert trace.header.score_kind == "prob"


def test_what_an_algorithm_has_not_is_absent(tmp_path):
    chain = Engine(tmp_path / "chain", "DFLASH").run([request("a")])["a"].steps[0]
    assert (chain.retrieve, chain.mask, chain.tree.scores, chain.sampling) == (None, None, None, None)
    assert chain.commit.draft_kv_positions[0] == chain.prefix_len
    assert chain.positions is not None and chain.slots is not None and chain.target is not None
    tree = Engine(tmp_path / "tree", "NGRAM").run([request("a")])["a"].steps[0]
    assert tree.tree.scores is None and tree.commit.draft_kv_positions is None
    assert tree.retrieve is not None and tree.mask is not None


@pytest.mark.parametrize("algorithm", ["EAGLE", "NGRAM"])
def test_slots_that_moved_are_those_that_the_pool_was_given(tmp_path, algorithm):
    engine = Engine(tmp_path, algorithm)
    traces = engine.run([request("a"), request("b")])
    destinations, sources = engine.moves[0]
    first = [traces[rid].steps[0].commit for rid in ("a", "b")]
    assert sources.tolist()[: sum(len(c.src_slots) for c in first)] == first[0].src_slots + first[1].src_slots
    assert destinations.tolist()[: len(first[0].dst_slots)] == first[0].dst_slots


def test_kv_that_was_left_where_it_was_is_named(tmp_path):
    """EAGLE before it packed its rows: sglang #15360."""
    engine = Engine(tmp_path, "EAGLE")
    engine._move = lambda *_: None
    trace = engine.run([request("a", 1.2, max_new_tokens=40)])["a"]
    assert {finding.rule for finding in examine(trace)} == {"commit", "kept-slots"}


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        ("mask", lambda given: given.mask.fill_(True)),
        ("positions", lambda given: given.positions.add_(1)),
        ("slots", lambda given: given.slots[1:2].copy_(given.slots[0:1])),
        ("sibling-tokens", lambda given: given.tokens[:, 2].copy_(given.tokens[:, 1])),
        ("links", lambda given: given.links[1][:, 5].fill_(4)),
    ],
)
def test_a_fault_is_recorded_as_the_engine_had_it(tmp_path, rule, spoil):
    engine = Engine(tmp_path, "EAGLE")
    engine.spoil = spoil
    assert rule in {finding.rule for finding in examine(engine.run([request("a")])["a"])}


def test_wild_indices_are_recorded_and_crash_nothing(tmp_path, monkeypatch):
    engine = Engine(tmp_path, "EAGLE")

    def wild(given):
        given.tokens[:, 4] = 1 << 40  # node 4 is a leaf whose token the target never says
        given.links[2][:, 4] = 12345  # its sibling, out of the tree; nothing follows it, since 3 comes first

    engine.spoil = wild
    engine._verify, verify = (lambda batch, given: verify(batch, _tamed(given))), engine._verify
    follow = twins.follow_verified_tree
    monkeypatch.setattr(
        twins, "follow_verified_tree", lambda tokens, *rest: follow(tokens, *_tame_links(rest))
    )
    trace = engine.run([request("a", max_new_tokens=4)])["a"]
    assert engine.tracer.failures == 0
    assert trace.steps[0].tree.tokens[4] == 1 << 40
    assert trace.steps[0].retrieve.next_sibling[4] == 12345


def _tamed(given):
    return SimpleNamespace(**{**vars(given), "tokens": given.tokens.clamp(max=VOCABULARY - 1)})


def _tame_links(rest):
    index, next_token, next_sibling, *more = rest
    return index, next_token, np.where(next_sibling > 99, -1, next_sibling), *more


def test_what_a_bias_changed_is_recorded_beside_the_raw_logits(tmp_path):
    engine = Engine(tmp_path, "EAGLE")
    bias = torch.zeros((1, VOCABULARY))
    bias[0, 7] = 50.0
    trace = engine.run([request("a", max_new_tokens=6)], {"logit_bias": bias})["a"]
    step = trace.steps[0]
    assert examine(trace) == []
    assert step.target.argmax[0] == 7 and step.target.raw.argmax[0] != 7
    assert trace.end.output_ids[1:] == [7] * 5


def test_a_step_whose_acceptance_nobody_saw_is_told_as_lost(tmp_path):
    engine = Engine(tmp_path, "EAGLE")
    accept = engine._accept

    def unhooked(*args):
        step, UnderWay.step = UnderWay.step, None
        try:
            return accept(*args)
        finally:
            UnderWay.step = step

    engine._accept = unhooked
    trace = engine.run([request("a")])["a"]
    assert len(trace.steps) == 0 and trace.end is not None
    assert {event.reason for event in trace.dropped} == {UNSEEN}


def test_an_error_in_a_hook_never_reaches_the_request(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(reading, "parents_of", lambda *_: 1 / 0)
    engine = Engine(tmp_path, "EAGLE")
    req = request("a")
    engine.run([req])
    assert req.finished() and "ZeroDivisionError" in caplog.text


def test_scores_come_out_of_the_draft_graph_that_was_replayed(tmp_path):
    """Captured once a batch size; a replay changes what the captured tensors hold."""
    runner, told = SimpleNamespace(bs=2), []
    scores = torch.tensor([[0.5, 0.3], [0.5, 0.3]])
    chosen = torch.tensor([[1, 0], [0, 1]])

    def capture(runner, size):
        for _ in range(3):  # twice to warm up
            eagle.note_scores(lambda *_: (None, chosen, None), [scores.view(2, 1, 2)], None, None, 3)

    eagle.note_capture(capture, runner, 2)
    UnderWay.step = SimpleNamespace(scored=told.append)
    try:
        assert eagle.note_replay(lambda _runner: "answer", runner) == "answer"
        eagle.note_replay(lambda _runner: None, SimpleNamespace(bs=2))  # another one's graph
    finally:
        UnderWay.step = None
    assert [t.tolist() for t in told] == [scores.gather(1, chosen).tolist()]


def test_between_steps_the_hooks_read_nothing(tmp_path):
    engine = Engine(tmp_path, "EAGLE")
    req = request("a", custom_params={})
    assert engine.run([req]) == {}
    assert req.finished() and engine.tracer.requests == {}


def test_parents_from_links_as_on_the_host():
    rng = np.random.default_rng(3)
    for width in (1, 2, 7, 33):
        for _ in range(20):
            count = int(rng.integers(1, width + 1))
            parents = np.array([-1, *(rng.integers(0, node) for node in range(1, count))], np.int32)
            links = compile_ddtree_retrieve(parents, 0, width)
            found = reading.parents_of(
                *(torch.tensor(a)[None] for a in (links.next_token, links.next_sibling))
            )
            assert found[0].tolist() == [*parents.tolist(), *[-1] * (width - count)]


def test_links_in_a_circle_or_out_of_the_tree_do_no_harm():
    """1 and 2 are each other's sibling; 3 leads out of the tree."""
    next_token, next_sibling = torch.tensor([[1, -1, -1, 99]]), torch.tensor([[-1, 2, 1, -7]])
    found = reading.parents_of(next_token, next_sibling)
    assert found[0, 0] == -1 and found[0, 3] == -1 and set(found[0].tolist()) <= {-1, 0}
