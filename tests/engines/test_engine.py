"""The step loop on tiny random models: lossless, stoppable, and recorded from its own buffers."""

import functools
import threading
import time

import numpy as np
import pytest
import torch

from ddviz.check.doctor import examine
from ddviz.check.doctor import faults as broken
from ddviz.engines.base import Control, GenerateParams
from ddviz.engines.faults import FAULTS
from ddviz.engines.torch_engine import faults
from ddviz.engines.torch_engine.engine import TorchEngine
from ddviz.engines.torch_engine.models import load_pair
from ddviz.engines.torch_engine.probs import target_probs as torch_target_probs
from ddviz.engines.torch_engine.probs import top_k
from ddviz.engines.torch_engine.record import NoRecording, Recording
from ddviz.errors import BadValueError, EngineError
from ddviz.trace import load
from ddviz.tree import target_probs
from ddviz.viewer import step_view

PROMPTS = ["Hello, wörld", "a b c d", "日本"]
WIDE = {
    "mode": "ddtree",
    "budget": 200,
    "topk_cap": 0,
}  # covers most of the tiny vocabulary: nodes are accepted


def request(prompt="Hello, wörld", **settings):
    return GenerateParams(prompt=prompt, **{"max_new_tokens": 40, "seed": 3, **settings})


def recorded(engine, path, **settings):
    with Recording(path) as recording:
        result = engine.generate(request(**settings), recording)
    return result, load(path)


# ------------------------------------------------------------------ lossless


@pytest.fixture(scope="session")
def plain(engine):
    """Prompt -> what autoregression makes of it, run once."""
    return functools.cache(lambda prompt: engine.generate(request(prompt, mode="ar")).output_ids)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "dflash"},
        {"mode": "ddtree", "budget": 1},
        {"mode": "ddtree", "budget": 16, "topk_cap": 4},
        WIDE,
        {"mode": "ddtree", "budget": 1024, "topk_cap": 0, "max_new_tokens": 12},
        {"mode": "ddtree", "budget": 16, "temperature": 1e-9},
        {"mode": "ddtree", "budget": 64, "temperature": 1.0, "top_k": 1},
    ],
    ids=str,
)
def test_greedy_output_equals_autoregressive(engine, plain, prompt, settings):
    expected = plain(prompt)[: settings.get("max_new_tokens")]
    assert engine.generate(request(prompt, **settings)).output_ids == expected


def test_a_wide_tree_accepts_nodes_at_all(engine):
    """Guards the test above: it would prove little on trees that are always refused."""
    assert max(engine.generate(request(**WIDE)).accept_lengths) >= 2


def test_autoregressive_output_equals_the_library_s_own_generation(engine):
    ids, _ = engine.prepare(request())
    theirs = engine.target.model.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)[
        0, len(ids) :
    ].tolist()
    assert engine.generate(request(mode="ar")).output_ids == theirs


@pytest.mark.parametrize("settings", [{"mode": "dflash"}, WIDE], ids=["chain", "tree"])
def test_committed_kv_equals_that_of_a_plain_forward(engine, settings, monkeypatch):
    """After the last step every committed row, packed or not, is what the target computes for the text
    itself.
    """
    runs = []
    monkeypatch.setattr(
        engine, "_new_run", lambda *args: runs.append(TorchEngine._new_run(engine, *args)) or runs[0]
    )
    result = engine.generate(request(**settings))
    cache = runs[0].cache
    ids, _ = engine.prepare(request())
    text = torch.tensor(ids + result.output_ids)[: cache.length]
    fresh = engine.target.new_cache(len(text))
    with torch.inference_mode():
        engine.target.forward(text, torch.arange(len(text)), fresh)
    n = min(len(text), cache.length)
    torch.testing.assert_close(cache.rows[..., :n, :], fresh.rows[..., :n, :], rtol=1e-4, atol=1e-4)


def test_drafting_from_the_cache_equals_drafting_from_the_whole_context(engine):
    """The drafter's committed context, appended piece by piece, gives what one pass over all features
    gives.
    """
    drafter, hidden = engine.drafter, engine.target.hidden_size
    torch.manual_seed(0)
    features = torch.randn(17, len(drafter.target_layer_ids) * hidden)
    block = torch.randn(drafter.block_size, hidden)
    with torch.inference_mode():
        whole, pieces = drafter.new_cache(40), drafter.new_cache(40)
        drafter.append_context(features, whole)
        expected = drafter(block, whole)
        for part in features.split([1, 7, 4, 5]):
            drafter(torch.randn_like(block), pieces)  # the rows a block leaves behind must not matter
            drafter.append_context(part, pieces)
        torch.testing.assert_close(drafter(block, pieces), expected, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------ sampled


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.6, 20, 1.0), (1.3, 0, 0.8), (1.0, 50, 0.9), (100.0, 0, 1.0)],
)
def test_torch_probabilities_equal_those_of_tree(temperature, top_k, top_p):
    logits = torch.randn(9, 400, generator=torch.Generator().manual_seed(1)) * 4
    mine = torch_target_probs(logits, temperature, top_k, top_p).numpy()
    theirs = target_probs(logits.numpy(), temperature, top_k, top_p)
    np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-7)
    assert ((mine > 0) == (theirs > 0)).all()


@pytest.mark.parametrize(("width", "k"), [(64 * 200, 8), (64 * 200, 65), (64 * 9, 16), (397, 8)])
def test_top_k_by_blocks_equals_torch_topk(width, k):
    rows = torch.randn(7, width, generator=torch.Generator().manual_seed(2))
    rows[0, :90] = 9.0  # ties across blocks
    values, tokens = top_k(rows, k)
    assert torch.equal(values, rows.topk(k).values) and torch.equal(rows.gather(1, tokens), values)
    assert all(len(set(row)) == k for row in tokens.tolist())


@pytest.mark.parametrize("settings", [{"mode": "ar"}, {"mode": "dflash"}, WIDE], ids=["ar", "chain", "tree"])
def test_the_same_seed_repeats_a_sampled_run(llama, settings):
    runs = [llama.generate(request(temperature=1.0, **settings)) for _ in range(2)]
    other = llama.generate(request(temperature=1.0, **{**settings, "seed": 4}))
    assert runs[0].output_ids == runs[1].output_ids != other.output_ids


def test_second_token_of_a_tree_is_distributed_as_the_target_says(llama, monkeypatch):
    """The token after the first, verified 1,500 times with fresh coins, against target_probs at T = 0.7,
    top_p 0.9. The forward of a step, the same each time, is run once.

    Chi-square over bins of at least 8 expected counts; a right engine exceeds the 1e-4 quantile once in
    10,000 choices of seeds, and the seeds are fixed.
    """
    params = request(temperature=0.7, top_p=0.9, mode="ddtree", budget=30, topk_cap=0)
    ids, _ = llama.prepare(params)
    run = llama._new_run(params, len(ids))
    draws = []
    with torch.inference_mode():
        list(llama._prefill(run, ids, NoRecording(), None, Control()))
        tree = llama.build(run, llama.draft(run))
        inputs = llama.compile(run, tree)
        forward, seen = llama.target.forward, []

        def forward_once(*args):
            if not seen:
                seen.append(forward(*args))
            return seen[0]

        with monkeypatch.context() as patch:
            patch.setattr(llama.target, "forward", forward_once)
            for _ in range(1500):  # nothing is committed, so the step can be verified again
                draws.append(llama.verify(run, tree, inputs).outcome.emitted[0])
        text = torch.tensor([*ids, run.root])
        hidden = llama.target.forward(text, torch.arange(len(text)), llama.target.new_cache(len(text)))
        probs = target_probs(llama.target.logits(hidden[-1:]).numpy(), 0.7, 0, 0.9)[0].astype(np.float64)
    expected, counts = len(draws) * probs, np.bincount(draws, minlength=len(probs))
    assert counts[probs == 0].sum() == 0
    large = expected >= 8
    observed = [*counts[large], counts[~large].sum()]
    wanted = [*expected[large], expected[~large].sum()]
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, wanted, strict=True) if e > 0)
    freedom = len(observed) - 1
    assert freedom >= 5
    assert statistic < chi_square_quantile_1e4(freedom), f"{statistic = } at {freedom} degrees of freedom"


def chi_square_quantile_1e4(freedom: int) -> float:
    """Upper 1e-4 quantile by Wilson and Hilferty, good to a percent here."""
    z = 3.719
    return freedom * (1 - 2 / (9 * freedom) + z * (2 / (9 * freedom)) ** 0.5) ** 3


# ------------------------------------------------------------------ ends


def test_a_stop_token_inside_an_accepted_path_cuts_the_output(llama, tmp_path, monkeypatch):
    free = llama.generate(request(**WIDE))
    at = np.cumsum([1, *free.accept_lengths])
    step = next(i for i, length in enumerate(free.accept_lengths) if length >= 2)
    stop = free.output_ids[at[step]]  # first token of a step that accepts more than one
    assert stop not in free.output_ids[: at[step]]
    monkeypatch.setattr(llama.target, "stop_ids", [stop])
    result, trace = recorded(llama, tmp_path / "x.ddviz", **WIDE)
    assert result.output_ids == free.output_ids[: at[step] + 1]
    assert result.finish_reason == "stop"
    last = trace.steps[-1]
    assert last.emitted == [stop] and len(last.accept.predicts) > 1
    assert broken(examine(trace)) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 17])
def test_max_new_tokens_counts_the_prefill_token(llama, limit):
    result = llama.generate(request(max_new_tokens=limit, **WIDE))
    assert len(result.output_ids) == limit and result.finish_reason == "length"


def test_generation_ends_where_the_context_ends(llama):
    prompt = "x" * (llama.target.context_length - 40)
    result = llama.generate(request(prompt, max_new_tokens=1000, chat=False, **WIDE))
    assert result.finish_reason == "context" and len(result.output_ids) == 40


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"prompt": "  \n"}, "prompt is empty"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"budget": 0}, "budget is 0"),
        ({"budget": 1025}, "budget is 1025"),
        ({"topk_cap": -1}, "topk_cap is -1"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"top_k": -2}, "top_k is -2"),
        ({"max_new_tokens": 0}, "max tokens is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"threshold_acc": 1.5}, "thresholds are 1 and 1.5"),
    ],
    ids=str,
)
def test_bad_values_get_one_sentence(llama, settings, sentence):
    with pytest.raises(BadValueError, match=sentence):
        llama.generate(GenerateParams(**{"prompt": "hi", **settings}))


def test_a_prompt_as_long_as_the_context_is_refused(llama):
    with pytest.raises(EngineError, match=r"prompt has 512 tokens, the target's context holds 512"):
        llama.generate(request("x" * 512, chat=False))


def test_a_cap_above_the_vocabulary_is_clamped_with_a_note(llama, tmp_path):
    _, trace = recorded(llama, tmp_path / "x.ddviz", budget=16, topk_cap=10**6)
    assert trace.header.topk_cap == llama.target.vocab_size
    assert "above the vocabulary" in trace.header.notes[0]


def test_without_a_drafter_only_autoregression_runs(tiny_folders):
    alone = TorchEngine(load_pair(str(tiny_folders["llama"][0]), None))
    assert len(alone.generate(request(mode="ar", max_new_tokens=5)).output_ids) == 5
    with pytest.raises(EngineError, match="needs a drafter"):
        alone.generate(request())


# ------------------------------------------------------------------ control


def test_pause_step_resume_and_stop_act_between_steps(llama, tmp_path):
    control, path = Control(), tmp_path / "x.ddviz"
    control.pause()
    done = []

    def run():
        with Recording(path) as recording:
            done.append(llama.generate(request(mode="ar", max_new_tokens=30), recording, control))

    thread = threading.Thread(target=run)
    thread.start()

    def steps_become(n):
        deadline = time.time() + 20
        while time.time() < deadline:
            if path.exists() and path.stat().st_size and len(load(path).steps) == n:
                time.sleep(0.05)  # and stay so
                return len(load(path).steps) == n
            time.sleep(0.01)
        return False

    assert steps_become(0)
    control.step()
    assert steps_become(1)
    control.step()
    control.step()
    assert steps_become(3)
    control.stop()
    thread.join(20)
    assert done[0].finish_reason == "stopped" and done[0].steps == 3
    assert load(path).end.finish_reason == "stopped"
    assert broken(examine(load(path))) == []


# ------------------------------------------------------------------ the trace


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "ar"},
        {"mode": "ar", "temperature": 1.0},
        {"mode": "dflash"},
        {"mode": "dflash", "temperature": 0.8, "top_k": 30},
        {"mode": "ddtree"},
        {"mode": "ddtree", "temperature": 1.0, "top_p": 0.9},
        WIDE,
        {**WIDE, "temperature": 1.0},
        {**WIDE, "temperature": 1.0, "threshold_acc": 0.5, "threshold_single": 0.2},
        {"mode": "ddtree", "budget": 1024, "topk_cap": 0, "temperature": 100.0, "max_new_tokens": 6},
    ],
    ids=str,
)
def test_the_doctor_is_silent_on_recorded_traces(engine, tmp_path, settings):
    result, trace = recorded(engine, tmp_path / "x.ddviz", **settings)
    assert broken(examine(trace)) == []
    assert trace.damage is None and len(trace.steps) == result.steps
    assert trace.output_ids == result.output_ids


def test_a_step_holds_every_part_of_the_standard_level(llama, tmp_path):
    _, trace = recorded(llama, tmp_path / "x.ddviz", temperature=1.0, budget=16, topk_cap=4)
    step = trace.steps[2]
    parts = (
        "batch",
        "draft",
        "tree",
        "retrieve",
        "positions",
        "slots",
        "mask",
        "target",
        "sampling",
        "accept",
        "commit",
    )
    assert [name for name in parts if getattr(step, name) is None] == []
    assert len(step.tree.tokens) == 17 and len(step.draft.top_ids) == 5 and len(step.draft.top_ids[0]) == 16
    assert set(step.times_us) == {"draft", "build", "compile", "verify", "commit"}
    assert all(us > 0 for us in step.times_us.values())


def test_nan_coins_and_infinite_logits_stay_readable_and_are_found(llama, tmp_path, monkeypatch):
    monkeypatch.setattr(llama, "draw_coins", lambda run, n: np.full(n + 1, np.nan, np.float32))
    logits = llama.target.logits

    def with_a_hole(hidden):
        rows = logits(hidden)
        rows[:, 200] = -torch.inf
        return rows

    monkeypatch.setattr(llama.target, "logits", with_a_hole)
    _, trace = recorded(llama, tmp_path / "x.ddviz", temperature=1.0, budget=16, max_new_tokens=4)
    assert trace.damage is None
    step = trace.steps[0]
    assert step.sampling.coins == [None] * 17
    assert step.target.nonfinite == 17
    rules = {finding.rule for finding in examine(trace)}
    assert "coins" in rules
    step_view(trace, 0)  # does not raise


def test_recorded_candidates_cover_the_cap(llama, tmp_path):
    _, trace = recorded(llama, tmp_path / "x.ddviz", budget=60, topk_cap=40)
    assert len(trace.steps[0].draft.top_ids[0]) >= 40


def test_the_forward_counter_goes_on_over_requests(llama, tmp_path):
    ids = []
    for name in ("a", "b"):
        _, trace = recorded(llama, tmp_path / f"{name}.ddviz", max_new_tokens=6)
        ids += [step.batch.id for step in trace.steps]
    assert ids == sorted(set(ids))


def test_stopped_while_the_prompt_is_read_there_is_no_output(llama, tmp_path, monkeypatch):
    monkeypatch.setattr("ddviz.engines.torch_engine.engine.PREFILL_CHUNK", 16)
    control, path = Control(), tmp_path / "x.ddviz"
    with Recording(path) as recording:
        result = llama.generate(
            request("x" * 60, mode="ddtree"),
            recording,
            control,
            lambda done, total: done < 16 or control.stop(),
        )
    assert (result.output_ids, result.finish_reason, result.tokens_per_s) == ([], "stopped", 0.0)
    trace = load(path)
    assert trace.prefills == []
    assert trace.end.finish_reason == "stopped"
    assert broken(examine(trace)) == []


def test_a_run_cut_off_inside_a_step_ends_with_what_was_recorded(llama, tmp_path, monkeypatch):
    """A second Ctrl-C after the third step's tokens joined the output, before the step was written."""
    step, path = Recording.step, tmp_path / "x.ddviz"

    def interrupted(self, run, *stages):
        if run.steps == 2:
            raise KeyboardInterrupt
        step(self, run, *stages)

    monkeypatch.setattr(Recording, "step", interrupted)
    with pytest.raises(KeyboardInterrupt), Recording(path) as recording:
        llama.generate(request(), recording)
    trace = load(path)
    assert (len(trace.steps), trace.end.steps, trace.end.finish_reason) == (2, 2, "stopped")
    assert broken(examine(trace)) == []


# ------------------------------------------------------------------ faults


# What no trace can show: odd features only make a poor drafter.
EXPECTED_RULE = {
    "chain_mask": "mask",
    "position_by_index": "positions",
    "kv_not_packed": "commit",
    "flat_off_by_one": "commit",
    "biased_coin": "coin-bias",
    "greedy_kernel_at_temperature": "kernel-choice",
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_runs_and_is_named_in_the_header(tiny_folders, tmp_path, name, monkeypatch):
    monkeypatch.setenv("DDVIZ_FAULT", name)
    sick = faults.engine_class()(load_pair(*map(str, tiny_folders["llama"])))
    _, trace = recorded(sick, tmp_path / "x.ddviz", **{**WIDE, "temperature": 1.0, "seed": 4})
    assert trace.header.engine.options["fault"] == name and len(trace.steps) > 1
    if name in EXPECTED_RULE:
        assert EXPECTED_RULE[name] in {finding.rule for finding in examine(trace)}


def test_an_unknown_fault_is_refused(monkeypatch):
    monkeypatch.setenv("DDVIZ_FAULT", "gremlin")
    with pytest.raises(EngineError, match="must be one of"):
        faults.engine_class()
