"""What another budget and cap would have accepted: a drawn tree, brute force, an engine that runs again."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddviz.analysis.cost import Cost, measured, parse_cost
from ddviz.analysis.whatif import Estimate, Text, ask, continuations, whatif
from ddviz.analysis.whatif_report import as_dict, best_of, rows_of
from ddviz.cli import main
from ddviz.engines.base import GenerateParams
from ddviz.errors import BadValueError
from ddviz.trace import load
from ddviz.trace.schema import Dropped, Step
from ddviz.tree import build_tree
from tests.synthetic import Setup, events_of, make_trace, trace_of, write_trace

# depth 1: a 0.6, b 0.3      in order of score: a .6, aa .42, b .3, ba .21, ab .18
# depth 2: a 0.7, b 0.3
LOGPROBS = np.log(np.array([[0.6, 0.3], [0.7, 0.3]], np.float32))
TOKENS = np.array([[1, 2], [1, 2]])


@pytest.mark.parametrize(
    ("text", "budget", "cap", "accept_length"),
    [
        ([1, 1, 9], 1, 0, 2),  # a alone
        ([1, 1, 9], 2, 0, 3),
        ([1, 2, 9], 4, 0, 2),  # ab is the fifth
        ([1, 2, 9], 5, 0, 3),
        ([2, 1, 9], 2, 0, 1),
        ([2, 1, 9], 4, 0, 3),
        ([2, 1, 9], 4, 1, 1),  # a chain: a, aa
        ([7, 1, 1], 5, 0, 1),
    ],
)
def test_the_longest_path_that_the_text_agrees_with(text, budget, cap, accept_length):
    (answer,) = ask(LOGPROBS, TOKENS, 0, text, [(budget, cap)], vocab_size=2)
    assert (answer.accept_length, answer.at_end, answer.beyond_k) == (accept_length, False, False)


def test_where_the_text_ends_the_answer_is_a_lower_bound():
    assert ask(LOGPROBS, TOKENS, 0, [1], [(1, 0), (2, 0)]) == [(2, 2, False, False), (2, 3, False, True)]


def test_a_tree_that_uses_the_last_kept_candidate_may_differ_without_a_cap():
    without, capped, narrow = ask(LOGPROBS, TOKENS, 0, [1, 1, 9], [(5, 0), (5, 2), (2, 0)])
    assert (without.beyond_k, capped.beyond_k, narrow.beyond_k) == (True, False, False)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), budget=st.integers(1, 20), cap=st.integers(0, 4))
def test_it_is_the_longest_of_all_paths_of_the_tree(seed, budget, cap):
    rng = np.random.default_rng(seed)
    logprobs = np.log(-np.sort(-rng.dirichlet(np.ones(6), 3), axis=1)).astype(np.float32)
    tokens = np.stack([rng.permutation(6) for _ in range(3)])
    text = rng.integers(0, 6, 4).tolist()
    tree = build_tree(logprobs, tokens, 0, budget, cap)
    paths = [[]]
    for node in range(1, len(tree)):
        paths.append([*paths[tree.parents[node]], int(tree.tokens[node])])
    longest = max(len(path) for path in paths if path == text[: len(path)])
    other = (20, cap)  # asked together, so that the tree is a larger one
    assert ask(logprobs, tokens, 0, text, [(budget, cap), other])[0].accept_length == longest + 1


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.0, 0.7]),
    algorithm=st.sampled_from(["DDTREE", "DFLASH"]),
    retract_before=st.sampled_from([None, 2]),
)
def test_the_recorded_setting_gives_the_recorded_accept_lengths(seed, temperature, algorithm, retract_before):
    setup = Setup(
        seed=seed, temperature=temperature, algorithm=algorithm, noise=0.5, retract_before=retract_before
    )
    trace = make_trace(setup)
    if not len(trace.steps):
        return
    (result,) = whatif([trace], [12], [3])
    assert (result.agree, result.skipped) == (result.steps, 0)
    if algorithm == "DDTREE":
        assert result.estimates[0].at_recorded_starts == result.recorded_accept_length
        assert result.estimates[0].accept_length == pytest.approx(result.recorded_accept_length)


def test_text_ends_where_steps_are_missing_and_knows_what_was_cut():
    events = events_of(Setup(seed=5, noise=0.3, max_new_tokens=23, stop_token_ids=()))
    steps = [event for event in events if isinstance(event, Step)]
    missing = steps[3]
    events[events.index(missing)] = Dropped(first=3, last=3, reason="test")
    known = [text for _, text in continuations(trace_of(events))]
    before = [token for step in steps[:3] for token in step.emitted]
    assert known[0] == before and known[2] == steps[2].emitted
    assert known[-1] == steps[-1].accept.predicts  # not cut at max tokens


def test_a_text_counts_as_often_as_its_own_steps_would_be():
    """Texts of 8 tokens each: recorded 4 + 2 steps; 1 and 4 tokens a step would have taken 8 + 2."""
    estimate = Estimate(1, 1, texts=[Text(4, 8, 4), Text(2, 8, 8)])
    assert estimate.at_recorded_starts == pytest.approx(12 / 6)
    assert estimate.accept_length == pytest.approx(16 / 10)


def test_thresholds_below_one_are_told():
    exact, biased = (make_trace(Setup(seed=3, temperature=1.0, threshold_acc=acc)) for acc in (1.0, 0.3))
    assert [whatif([trace], [12], [3])[0].biased for trace in (exact, biased)] == [False, True]


def test_steps_that_do_not_give_their_own_accept_length_are_counted():
    trace = make_trace(Setup(seed=3, noise=0.1))
    trace.header.budget = 1  # as if the engine had not grown the tree it was told to
    (result,) = whatif([trace], [12], [3])
    assert result.agree < result.steps


def test_without_a_draft_there_is_nothing_to_ask():
    with pytest.raises(BadValueError, match="draft distribution"):
        whatif([make_trace(Setup(algorithm="AR"))])
    with pytest.raises(BadValueError, match="budget 0"):
        whatif([make_trace(Setup())], [0])


def test_a_run_again_agrees_at_every_step_start_that_both_have(tiny_folders, tmp_path):
    """Greedy, on the embedded engine with a random pair: exact per step."""
    from ddviz.engines.torch_engine.engine import TorchEngine
    from ddviz.engines.torch_engine.models import load_pair
    from ddviz.engines.torch_engine.record import Recording

    engine = TorchEngine(load_pair(*map(str, tiny_folders["llama"])))
    traces = {}
    for budget, cap in [(60, 0), (200, 12)]:
        params = GenerateParams(prompt="to and fro", budget=budget, topk_cap=cap, max_new_tokens=30)
        path = tmp_path / f"{budget}.ddviz"
        with Recording(path) as recording:
            engine.generate(params, recording)
        traces[budget] = load(path)
    again = {step.prefix_len: step.accept.num_accepted + 1 for step in traces[200].steps}
    (result,) = whatif([traces[60]], [60], [0])
    assert result.agree == result.steps
    compared = 0
    for step, text in continuations(traces[60]):
        if step.prefix_len in again:
            rows = np.array(step.draft.top_logprobs, np.float32), np.array(step.draft.top_ids)
            (answer,) = ask(*rows, step.tree.tokens[0], text, [(200, 12)])
            assert answer.accept_length == again[step.prefix_len] or answer.at_end
            compared += 1
    assert compared > 3 and max(again.values()) > 1


def test_a_cost_is_a_line_between_medians_and_ends_soon_beyond_them():
    cost = Cost({1: 100.0, 16: 190.0, 17: 200.0, 65: 440.0}, "")
    assert [cost.ms(n) for n in (1, 17, 41, 65, 89)] == pytest.approx([100, 200, 320, 440, 560])
    assert [cost.ms(n) for n in (8, 15, 129, 131)] == [pytest.approx(110), 190.0, pytest.approx(760), None]
    alone = Cost({17: 200.0}, "")
    assert [alone.ms(n) for n in (1, 16, 17, 65)] == [None, 200.0, 200.0, None]


def test_costs_are_measured_given_or_read(tmp_path):
    write_trace(tmp_path / "a.ddviz", Setup(seed=1, stop_token_ids=()))
    assert measured([load(tmp_path / "a.ddviz")], "").knots == {13: pytest.approx(0.003)}
    assert parse_cost(str(tmp_path)).knots == {13: pytest.approx(0.003)}
    (tmp_path / "cost.json").write_text('{"65": 150, "17": 190}')
    assert parse_cost(str(tmp_path / "cost.json")).knots == {17: 190.0, 65: 190.0}  # never less for more
    assert parse_cost("1:90,17:190.5").knots == {1: 90.0, 17: 190.5}
    for wrong in ("17", "17:x", "0:5", "17:-1", "17:inf"):
        with pytest.raises(BadValueError, match="nodes with the root"):
            parse_cost(wrong)


def test_the_best_has_the_most_tokens_per_second():
    (result,) = whatif([make_trace(Setup(seed=2, noise=0.5))], [2, 12], [3])
    dear = Cost({3: 1.0, 13: 100.0}, "")
    assert best_of(rows_of(result, dear)).name == "2-3"
    assert best_of(rows_of(result, Cost({3: 1.0, 13: 1.0}, ""))).name == "12-3"
    assert best_of(rows_of(result, Cost({}, ""))) is None
    json.dumps(as_dict([result], dear, []))


def test_the_command_prints_a_table_and_json(tmp_path, capsys):
    path = write_trace(tmp_path / "a.ddviz", Setup(seed=2, stop_token_ids=()))
    assert main(["whatif", str(path), "--cost", "1:1,5:2,13:3,65:9"]) == 0
    told = capsys.readouterr().out
    assert "linear" in told and "Fastest of these" in told and "Exact per step" in told
    assert main(["whatif", str(path), "--budget", "12", "4", "--topk-cap", "3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(s["budget"], s["topk_cap"]) for s in said["results"][0]["settings"]] == [(12, 3), (4, 3)]
    assert said["results"][0]["agree"] == said["results"][0]["steps"]
    assert main(["whatif", str(path), "--budget", "9999"]) == 2
    assert main(["whatif", str(path), "--cost", "nonsense"]) == 2
