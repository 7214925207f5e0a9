"""The tracer on the CPU: twins from ddviz/tree in place of the tree and acceptance kernels, a model that is a
table; the plugin's other kernels in Triton's interpreter, and in one batch its tree kernels too. What the
tracer wrote must pass the doctor.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ddviz.check.doctor import examine
from ddviz.engines.sglang_plugin import tree_kernels
from ddviz.engines.sglang_plugin.batch import AcceptedBatch
from ddviz.engines.sglang_plugin.commit import KVPacker, settle
from ddviz.engines.sglang_plugin.stamps import stamp
from ddviz.engines.sglang_plugin.step_buffers import StageGraphs, StepBuffers
from ddviz.engines.sglang_plugin.tracing import tracer as tracer_module
from ddviz.engines.sglang_plugin.tracing import writer as writer_module
from ddviz.engines.sglang_plugin.tracing.ddtree_step import DDTreeStep
from ddviz.engines.sglang_plugin.tracing.notes import Notes
from ddviz.engines.sglang_plugin.tracing.slots import Slots
from ddviz.engines.sglang_plugin.tracing.tracer import (
    NO_STEP,
    asked_level,
    sampling_of,
)
from ddviz.engines.sglang_plugin.tracing.writer import NOT_WRITTEN, OTHER_TURN
from ddviz.errors import TraceError
from ddviz.trace import load
from ddviz.tree import follow_verified_tree, sample_tree_paths, target_probs
from tests.engines.sglang_plugin import twins
from tests.engines.sglang_plugin.twins import new_tracer, note_rejected

VOCABULARY, BLOCK, BUDGET, CAP, CANDIDATES = 24, 4, 6, 3, 6
WIDTH, ROW_WIDTH = BUDGET + 1, 128
STOP = 0


def request(rid, temperature=0.0, max_new_tokens=14, custom_params=None):
    """What the tracer reads of an SGLang Req, which has temperature 0 as temperature 1 with top_k 1."""
    params = SimpleNamespace(
        temperature=temperature or 1.0,
        top_k=1 if temperature == 0 else 1 << 30,
        top_p=1.0,
        sampling_seed=None,
        max_new_tokens=max_new_tokens,
        stop_token_ids={STOP},
        custom_params={"ddviz": {"level": "standard"}} if custom_params is None else custom_params,
    )
    return FakeRequest(rid=rid, sampling_params=params)


class FakeRequest(SimpleNamespace):
    is_retracted, finished_reason, cached_tokens = False, None, 3
    inflight_middle_chunks = 0

    def __init__(self, **given):
        super().__init__(origin_input_ids=[5, 6, 7, 8], output_ids=[], **given)
        self.kv = SimpleNamespace(kv_allocated_len=60)

    def finished(self):
        return self.finished_reason is not None

    @property
    def output_ids_through_stop(self):
        ids = self.output_ids[: self.sampling_params.max_new_tokens]
        return ids[: ids.index(STOP) + 1] if STOP in ids else ids

    def take(self, tokens):
        """SGLang appends the whole accepted run, then trims by its finish state."""
        self.output_ids.extend(tokens)
        if STOP in self.output_ids:
            self._end("stop")
        elif len(self.output_ids) >= self.sampling_params.max_new_tokens:
            self._end("length")

    def _end(self, kind):
        self.finished_reason = SimpleNamespace(to_json=lambda: {"type": kind})


class Engine:
    """Steps of DDTreeWorker without SGLang: the same calls in the same order."""

    def __init__(self, folder, slots=None, default_level=None, kernels=twins):
        self.tracer = new_tracer(
            folder,
            block_size=BLOCK,
            budget=BUDGET,
            topk_cap=CAP,
            vocab_size=VOCABULARY,
            row_width=ROW_WIDTH,
            slots=slots,
            default_level=default_level,
        )
        self.writer, self.kernels = self.tracer.writer, kernels
        self.folder = folder
        self.table = torch.randn((VOCABULARY, VOCABULARY), generator=torch.Generator().manual_seed(1)) * 2
        self.table[:, STOP] -= 4
        self.rng = np.random.default_rng(2)
        self.rows = torch.arange(8 * ROW_WIDTH, dtype=torch.int32).view(8, ROW_WIDTH) + 1
        self.pool = SimpleNamespace(kv_buffer=[torch.randn((8 * ROW_WIDTH + 1, 4))])
        self.packer = KVPacker(self.pool)
        self.forwards = 0
        self.steps = StepBuffers.empty(8, WIDTH, BLOCK, "cpu")
        self.lists = {}  # batch size -> what the drafter said last
        notes = Notes(self.steps, self.lists.get, VOCABULARY, self.tracer.ring)
        self.tracer.kind = partial(DDTreeStep, notes)
        self.spoil = lambda tree, mask: None  # a fault of the engine's, after compile

    def prefill(self, reqs):
        for i, req in enumerate(reqs):
            req.length, req.pool_index = len(req.origin_input_ids), i
            req.take([int(self.table[req.origin_input_ids[-1]].argmax())])
        self.tracer.prefilled(reqs)

    def launch(self, reqs):
        """A step as the worker runs it; returns SGLang's result and what the scheduler will take."""
        self.forwards += 1
        seq_lens = torch.tensor([req.length for req in reqs])
        roots = torch.tensor([req.root if hasattr(req, "root") else req.output_ids[-1] for req in reqs])
        batch = SimpleNamespace(reqs=reqs, seq_lens=seq_lens, forward_iter=self.forwards)
        trace = self.tracer.step(batch)
        step = self.steps.first(len(reqs))
        step.seq_lens.copy_(seq_lens)
        tree = step.tree
        stamp(step.stamps, 0)
        self.lists[step.bs] = self._draft(roots)
        limits = torch.tensor([[BUDGET, CAP]] * len(reqs), dtype=torch.int32).T
        limits = limits[0].contiguous(), limits[1].contiguous()
        self.kernels.build_trees(tree, *self.lists[step.bs], roots, *limits)
        mask = torch.zeros(int((WIDTH * (seq_lens + WIDTH)).sum()), dtype=torch.uint8)
        pool_indices = torch.tensor([req.pool_index for req in reqs])
        self.kernels.compile_trees(tree, seq_lens, pool_indices, self.rows, mask)
        self.spoil(tree, mask)
        logits = self.table[tree.tokens.view(-1)]
        trace.raw(step, logits, may_change=False)
        for own, twin in zip(step.accepted, self._accept(reqs, tree, logits, trace), strict=True):
            own.copy_(twin)
        settle(step, torch.arange(BLOCK))
        step.moves.zero_()
        self.packer.pack(tree.slots, step.accepted, step.moves)
        for boundary in range(1, 6):
            stamp(step.stamps, boundary)
        trace.noted(step, mask)
        result = SimpleNamespace()
        trace.launched(result, graph=False)
        for i, req in enumerate(reqs):  # the next step may be launched before this result is taken
            req.length, req.root = int(step.new_seq_lens[i]), int(step.bonus[i])
        taken = [step.emitted[i, :n].tolist() for i, n in enumerate(step.accept_lens.tolist())]
        return result, taken

    def settle(self, reqs, result, taken):
        twins.settle(self.tracer, reqs, result, taken)

    def run(self, reqs):
        """With overlap: a step is launched before the last one's result is taken."""
        self.prefill(reqs)
        under_way = None
        while any(not req.finished() for req in reqs):
            launched = self.launch(reqs)
            if under_way:
                self.settle(reqs, *under_way)
            under_way = launched
        self.settle(reqs, *under_way)
        self.writer.close(30)
        return {load(path).header.request_id: load(path) for path in sorted(self.folder.glob("*.ddviz"))}

    def _draft(self, roots):
        best = [roots]
        for _ in range(BLOCK - 1):
            best.append(self.table[best[-1]].argmax(-1))
        logits = self.table[torch.stack(best[:-1], 1)] + torch.randn(
            (len(roots), BLOCK - 1, VOCABULARY), generator=torch.Generator().manual_seed(self.forwards)
        )
        top, ids = torch.log_softmax(logits, -1).topk(CANDIDATES, -1)
        return top.contiguous(), ids.contiguous()

    def _accept(self, reqs, tree, logits, trace):
        links = [t.numpy() for t in (tree.tokens, tree.retrieve_index, tree.next_token, tree.next_sibling)]
        if all(req.sampling_params.top_k == 1 for req in reqs):
            twin = follow_verified_tree(*links, logits.argmax(-1).view_as(tree.tokens).numpy(), BLOCK)
            return _tensors(twin)
        probs = np.stack(
            [
                target_probs(
                    logits.view(len(reqs), WIDTH, -1)[i].numpy(),
                    req.sampling_params.temperature,
                    top_k=1 if req.sampling_params.top_k == 1 else 0,  # a greedy row is one-hot
                )
                for i, req in enumerate(reqs)
            ]
        )
        coins = self.rng.random((len(reqs), WIDTH), np.float32)
        final = self.rng.random(len(reqs), np.float32)
        twin = sample_tree_paths(*links, probs, coins, final, BLOCK)
        accepted = _tensors(twin)
        rejected = torch.zeros(probs.shape)
        tokens, _, next_token, next_sibling = links
        path = accepted.accept_index, accepted.num_accepted
        note_rejected(rejected, probs, tokens, next_token, next_sibling, *path)
        tensors = (torch.from_numpy(a) for a in (coins, final))
        trace.sampled(slice(0, len(reqs)), tree, torch.from_numpy(probs), rejected, accepted, *tensors)
        return accepted


def _tensors(twin):
    return AcceptedBatch(
        *(torch.from_numpy(a) for a in (twin.predicts, twin.accept_index, twin.num_accepted))
    )


def test_traces_of_a_greedy_batch_pass_the_doctor_and_hold_what_was_said(tmp_path):
    reqs = [request("a"), request("b", max_new_tokens=8), request("c")]
    traces = Engine(tmp_path, kernels=tree_kernels).run(reqs)
    assert sorted(traces) == ["a", "b", "c"]
    for req in reqs:
        trace = traces[req.rid]
        assert examine(trace) == []
        assert trace.end.output_ids == req.output_ids_through_stop
        assert trace.end.finish_reason in ("stop", "length")
        assert [step.index for step in trace.steps] == list(range(len(trace.steps)))
        assert len(trace.steps) >= 2
        step = trace.steps[1]
        assert (step.batch.size, step.batch.row, step.batch.q_len) == (3, reqs.index(req), WIDTH)
        assert len(step.draft.top_ids[0]) == CANDIDATES
        assert step.commit.row_width == ROW_WIDTH


def test_traces_of_a_sampled_batch_replay_coin_by_coin(tmp_path):
    traces = Engine(tmp_path).run([request("a", 1.0), request("b", 0.7), request("c", 1.3)])
    for trace in traces.values():
        assert examine(trace) == []
        assert all(step.accept.kernel == "sampled" and step.sampling is not None for step in trace.steps)


def test_only_requests_that_ask_are_traced(tmp_path):
    traces = Engine(tmp_path).run(
        [request("a", custom_params={}), request("b"), request("c", custom_params={})]
    )
    assert list(traces) == ["b"]
    assert examine(traces["b"]) == []
    assert {step.batch.row for step in traces["b"].steps} == {1}


def test_a_server_may_trace_all_and_a_request_may_decline(tmp_path):
    off = {"ddviz": {"level": "off"}}
    traces = Engine(tmp_path, default_level="light").run(
        [request("a", custom_params={}), request("b", custom_params=off), request("c")]
    )
    assert sorted(traces) == ["a", "c"]
    light, standard = traces["a"].steps[0], traces["c"].steps[0]
    assert traces["a"].header.level == "light" and light.mask is None and light.target is None
    assert standard.mask is not None and standard.target is not None
    assert examine(traces["a"]) == []


def test_a_mask_that_became_a_chain_is_recorded_as_it_was_and_named(tmp_path):
    """The tracer reads the buffer that attention reads; it does not work the mask out again."""
    engine = Engine(tmp_path)
    engine.spoil = lambda tree, mask: mask.fill_(1)
    findings = examine(engine.run([request("a")])["a"])
    assert {finding.rule for finding in findings} == {"mask"}


def test_a_link_off_by_one_is_recorded_as_the_kernel_got_it(tmp_path):
    engine = Engine(tmp_path)

    def first_child_left_out(tree, mask):
        tree.next_token[:, 0] = tree.next_sibling[:, 1]

    engine.spoil = first_child_left_out
    trace = engine.run([request("a", max_new_tokens=6)])["a"]
    assert all(step.retrieve.next_token[0] != 1 for step in trace.steps)
    assert {finding.rule for finding in examine(trace)} == {"links"}


def test_when_the_ring_is_full_steps_are_dropped_counted_and_told(tmp_path):
    """No slot that is ever free: every step is lost, the requests are served, the trace says so."""
    req = request("a")
    slots = Slots(1, 200_000)
    slots.take()  # nobody will free it
    trace = Engine(tmp_path, slots).run([req])["a"]
    assert len(trace.steps) == 0 and len(trace.dropped) >= 2
    assert "ring" in trace.dropped[0].reason
    assert trace.end.output_ids == req.output_ids_through_stop


def test_a_full_ring_goes_on_where_it_was(tmp_path):
    """Steps are dropped while a reader has every slot; those after it are whole and their own."""
    slots = Slots(3, 200_000, readers=2)
    engine, req = Engine(tmp_path, slots), request("a", max_new_tokens=60)
    engine.prefill([req])
    for step in range(12):
        engine.settle([req], *engine.launch([req]))
        if step >= 6:  # until then the other reader is behind
            for turn in range(3):
                slots.free(turn, reader=1)
    engine.writer.close()
    trace = load(next(tmp_path.glob("*.ddviz")))
    assert [step.index for step in trace.steps] == [0, 1, 2, 7, 8, 9, 10, 11]
    assert [event.first for event in trace.dropped] == [3, 4, 5, 6]
    assert {finding.rule for finding in examine(trace)} == {"incomplete"}  # it lacks steps, and its end


def test_a_slot_that_holds_another_step_is_not_taken_for_this_one(tmp_path, caplog):
    engine, req = Engine(tmp_path, Slots(2, 200_000)), request("a", max_new_tokens=60)
    engine.prefill([req])
    for step in range(6):
        if step == 4:
            engine.tracer.ring.turn -= 1  # the device and the host count apart: the slot holds step 2
        engine.settle([req], *engine.launch([req]))
    engine.writer.close()
    trace = load(next(tmp_path.glob("*.ddviz")))
    assert [step.index for step in trace.steps] == [0, 1, 2, 3]
    assert [(event.first, event.reason) for event in trace.dropped] == [(4, OTHER_TURN), (5, OTHER_TURN)]
    assert OTHER_TURN in caplog.text


def steps_with_a_failure(folder, fail):
    """A sampled request of 12 steps in 3 slots, `fail` called before the fifth; its trace."""
    engine, req = Engine(folder, Slots(3, 200_000)), request("a", temperature=1.0, max_new_tokens=60)
    engine.table[:, STOP] -= 100
    engine.prefill([req])
    for step in range(12):
        if step == 4:
            fail(engine)
        engine.settle([req], *engine.launch([req]))
    engine.writer.close()
    assert engine.tracer.failures == 1
    return load(next(folder.glob("*.ddviz")))


def fails_once(owner, name):
    """Replace a function of an object or module by one that raises, and then is itself again."""
    original = getattr(owner, name)

    def fail(*args, **kwargs):
        setattr(owner, name, original)
        raise RuntimeError("once")

    setattr(owner, name, fail)


@pytest.mark.parametrize(
    "fail",
    [
        lambda engine: fails_once(engine.tracer.ring, "add"),  # what a sampled step has beside
        lambda engine: fails_once(engine.tracer.kind.args[0], "pack"),
        lambda engine: fails_once(DDTreeStep, "_facts_of"),
        lambda engine: fails_once(engine.tracer, "_tell_step"),
    ],
    ids=["add", "pack", "facts", "tell"],
)
def test_a_step_of_which_a_part_failed_is_lost_as_a_whole_and_the_next_ones_are_not(tmp_path, fail):
    trace = steps_with_a_failure(tmp_path, fail)
    assert [step.index for step in trace.steps] == [0, 1, 2, 3, *range(5, 12)]
    assert {step.accept.kernel for step in trace.steps} == {"sampled"}
    assert [(event.first, "failed" in event.reason) for event in trace.dropped] == [(4, True)]
    assert {finding.rule for finding in examine(trace)} == {"incomplete"}  # it lacks a step, and its end


def batch_with_a_failing_row(engine, fail):
    """Six steps of three requests, `fail` called before the fourth; their traces by request."""
    engine.table[:, STOP] -= 100
    reqs = [request(rid, max_new_tokens=100) for rid in "abc"]
    engine.prefill(reqs)
    for step in range(6):
        if step == 3:
            fail(engine)
        engine.settle(reqs, *engine.launch(reqs))
    engine.writer.close()
    return {load(path).header.request_id: load(path) for path in engine.folder.glob("*.ddviz")}


def test_a_row_that_can_not_be_made_is_told_as_dropped_and_the_others_are_written(
    tmp_path, monkeypatch, caplog
):
    def fail(engine):
        original = writer_module.step_of

        def step_of(row, facts, *given):
            assert (facts.row, facts.index) != (1, 3), "planted"
            return original(row, facts, *given)

        monkeypatch.setattr(writer_module, "step_of", step_of)

    traces = batch_with_a_failing_row(Engine(tmp_path), fail)
    assert [step.index for step in traces["b"].steps] == [0, 1, 2, 4, 5]
    assert [(event.first, event.reason) for event in traces["b"].dropped] == [(3, NOT_WRITTEN)]
    for rid in "ac":
        assert [step.index for step in traces[rid].steps] == list(range(6)) and not traces[rid].dropped
    assert "planted" in caplog.text


def test_a_trace_that_can_not_be_written_is_forgotten_and_the_other_rows_are_written(tmp_path, caplog):
    def fail(engine):
        recorder = engine.writer._recorders["a"]

        def step(_):
            recorder.close()
            raise TraceError("disk full")

        recorder.step = step

    engine = Engine(tmp_path)
    traces = batch_with_a_failing_row(engine, fail)
    assert {rid: len(trace.steps) for rid, trace in traces.items()} == {"a": 3, "b": 6, "c": 6}
    assert set(engine.writer._recorders) == {"b", "c"}
    assert caplog.text.count("disk full") == 1


def test_the_device_begins_to_count_when_its_graphs_are_captured(tmp_path, monkeypatch):
    """Before a stage is captured it runs once."""
    monkeypatch.setattr(StageGraphs, "capture", lambda graphs, stage, *given: stage(*given))
    engine = Engine(tmp_path)
    notes, step = engine.tracer.kind.args[0], engine.steps.first(2)
    engine.lists[2] = engine._draft(torch.tensor([1, 2]))
    step.seq_lens.fill_(3)
    for array in (step.tree.tokens, step.tree.parents):
        array.zero_()
    notes.capture([step], torch.zeros((2 * WIDTH, VOCABULARY)), torch.zeros(5000, dtype=torch.uint8))
    assert int(engine.tracer.ring.turn) == engine.tracer.ring.slots.turn == 0


def test_an_id_that_can_not_be_written_is_not_traced(tmp_path):
    engine, reqs = Engine(tmp_path), [request("a"), request("\ud800")]
    assert set(engine.run(reqs)) == {"a"}
    assert engine.tracer.failures == 0


def test_an_error_in_tracing_never_reaches_the_request(tmp_path, monkeypatch, caplog):
    from ddviz.engines.sglang_plugin.tracing import notes

    monkeypatch.setattr(notes, "read_rows", lambda *_: 1 / 0)
    reqs = [request("a"), request("b")]
    engine = Engine(tmp_path)
    engine.run(reqs)
    assert all(req.finished() for req in reqs)
    assert "ZeroDivisionError" in caplog.text
    assert engine.tracer.step(SimpleNamespace(reqs=reqs)) is NO_STEP  # it gave up


def test_a_retracted_request_begins_again(tmp_path):
    engine, req = Engine(tmp_path), request("a", max_new_tokens=24)
    engine.prefill([req])
    for _ in range(2):
        engine.settle([req], *engine.launch([req]))
    under_way = engine.launch([req])
    req.is_retracted = True
    engine.settle([req], *under_way)
    req.is_retracted = False
    del req.root
    req.length = len(req.origin_input_ids) + len(req.output_ids)
    req.output_ids.append(int(engine.table[req.output_ids[-1]].argmax()))  # prefill's token
    engine.tracer.prefilled([req])
    while not req.finished():
        engine.settle([req], *engine.launch([req]))
    engine.writer.close(30)
    trace = load(next(tmp_path.glob("*.ddviz")))
    assert [step.index for step in trace.steps] == list(range(len(trace.steps)))
    assert examine(trace) == []


@pytest.mark.parametrize(
    ("custom_params", "default", "level"),
    [
        (None, None, None),
        (None, "light", "light"),
        ({"ddviz": {"level": "light"}}, None, "light"),
        ({"ddviz": {}}, None, "standard"),
        ({"ddviz": {"level": "much"}}, None, "standard"),
        ({"ddviz": {"level": "full"}}, None, "standard"),  # what is not recorded is not claimed
        ({"ddviz": {"level": "off"}}, "standard", None),
        ({"ddviz": True}, None, None),
    ],
)
def test_who_is_traced_at_which_level(custom_params, default, level):
    assert asked_level(custom_params, default) == level


def test_sampling_is_written_in_the_terms_of_the_trace():
    greedy, sampled = (sampling_of(request("a", t).sampling_params) for t in (0.0, 0.7))
    assert (greedy.temperature, greedy.top_k) == (0.0, 1)
    assert (sampled.temperature, sampled.top_k, sampled.stop_token_ids) == (0.7, 0, [STOP])


def test_a_clients_request_id_never_becomes_a_path(tmp_path):
    traces = Engine(tmp_path).run([request("../../etc/pass wd", max_new_tokens=4)])
    assert list(traces) == ["../../etc/pass wd"]
    assert [p.parent for p in tmp_path.rglob("*.ddviz")] == [tmp_path]


def test_requests_of_one_name_in_one_second_have_a_file_each(tmp_path, monkeypatch):
    """Beside them a file that another server made, and a request that is called as the second would be."""
    monkeypatch.setattr(tracer_module.time, "strftime", lambda *_: "20261130-120000")
    (tmp_path / "20261130-120000-a-3.ddviz").touch()
    tracer = Engine(tmp_path).tracer
    given = [tracer._free_path(rid).stem.removeprefix("20261130-120000-") for rid in ("a", "a", "a-2", "a")]
    assert given == ["a", "a-2", "a-2-2", "a-4"]
    long = [tracer._free_path("x" * 80 + end).stem for end in "12"]
    assert long[1] == f"{long[0]}-2"


def test_requests_of_one_name_one_after_the_other_are_all_traced(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tracer_module.time, "strftime", lambda *_: "20261130-120000")
    engine = Engine(tmp_path)
    for _ in range(3):
        req = request("a", max_new_tokens=4)
        engine.prefill([req])
        while not req.finished():
            engine.settle([req], *engine.launch([req]))
    assert len(list(tmp_path.glob("*.ddviz"))) == 3
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
