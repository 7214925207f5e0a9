"""Losslessness: the exact law, sound engines pass, biased ones are caught, and what was not checked says so.

A row of a sound engine has a false alarm once in 10,000 choices of seeds; the seeds are fixed. Draws are few:
what is planted is large. The power of a real run is in its report.
"""

import json
import sys
from collections import Counter

import msgspec
import numpy as np
import pytest

from ddviz.check import losslessness as c
from ddviz.check import one_step as o
from ddviz.check import samplers as s
from ddviz.check.gtest import against_law
from ddviz.check.law import biased_law, children_of, exact_law
from ddviz.check.remembering import remembering
from ddviz.cli import main
from ddviz.engines.base import GenerateParams
from ddviz.engines.torch_engine.engine import TorchEngine
from ddviz.engines.torch_engine.faults import ENGINES
from ddviz.engines.torch_engine.models import load_pair
from ddviz.errors import BadValueError, EngineError
from ddviz.tree import accepted_paths, compile_ddtree_retrieve, sample_tree_paths
from tests.check.plain_server import LAW, PlainServer

PARAMS = GenerateParams(
    prompt="My favourite animal is the",
    chat=False,
    mode="ddtree",
    budget=60,
    topk_cap=0,
    temperature=1.0,
    top_k=5,
)
SMALL = c.Size(draws=800, generations=200)


def quiet(*args):
    pass


@pytest.fixture(scope="module")
def pair(tiny_folders):
    return load_pair(*map(str, tiny_folders["llama"]), "float32", "cpu")


# ------------------------------------------------------------------ the law


TOKENS, PARENTS = np.array([9, 0]), np.array([-1, 0], np.int32)  # root -> A
PROBS = np.array([[0.6, 0.3, 0.1], [0.5, 0.5, 0.0]])


def test_the_law_of_a_tree_small_enough_to_draw():
    law = exact_law(TOKENS, children_of(PARENTS), PROBS, longest=4)
    assert law == pytest.approx({(0, 0): 0.3, (0, 1): 0.3, (1,): 0.3, (2,): 0.1})


def test_at_the_longest_path_a_child_is_not_examined():
    law = exact_law(TOKENS, children_of(PARENTS), PROBS, longest=1)
    assert law == pytest.approx({(0,): 0.6, (1,): 0.3, (2,): 0.1})


def test_the_law_under_a_threshold_by_hand():
    """At 0.75 A is accepted with probability 0.6 / 0.75 = 0.8; the rest is shared by B and C, 3 to 1."""
    law = biased_law(TOKENS, children_of(PARENTS), PROBS, 4, threshold_acc=0.75)
    assert law == pytest.approx({(0, 0): 0.4, (0, 1): 0.4, (1,): 0.15, (2,): 0.05})


def random_tree(seed, n=7, vocabulary=5):
    """Siblings have distinct tokens; some rows hold zeros."""
    rng = np.random.default_rng(seed)
    parents, tokens, taken = [-1], [0], {}
    while len(parents) < n:
        parent, token = int(rng.integers(len(parents))), int(rng.integers(vocabulary))
        if token not in taken.setdefault(parent, set()):
            taken[parent].add(token)
            parents.append(parent)
            tokens.append(token)
    probs = rng.dirichlet(np.full(vocabulary, 0.7), n).astype(np.float32)
    return np.array(tokens), np.array(parents, np.int32), probs


@pytest.mark.parametrize("seed", range(6))
def test_without_a_threshold_both_laws_are_one_and_the_first_token_is_the_target_s(seed):
    tokens, parents, probs = random_tree(seed)
    law = exact_law(tokens, children_of(parents), probs, 4)
    assert sum(law.values()) == pytest.approx(1, abs=1e-5)
    assert biased_law(tokens, children_of(parents), probs, 4, 1.0) == pytest.approx(law, abs=1e-6)
    first = np.zeros(probs.shape[1])
    for emitted, mass in law.items():
        first[emitted[0]] += mass
    np.testing.assert_allclose(first, probs[0], atol=1e-6)


@pytest.mark.parametrize("threshold", [1.0, 0.6])
def test_tree_accept_samples_from_the_law(threshold):
    tokens, parents, probs = random_tree(11)
    links, n, draws = compile_ddtree_retrieve(parents), len(tokens), 4000
    rng = np.random.default_rng(5)
    same = [np.broadcast_to(a, (draws, n)) for a in (tokens, links.next_token, links.next_sibling)]
    acceptance = sample_tree_paths(
        same[0], links.index + np.arange(draws)[:, None] * n, *same[1:],
        np.broadcast_to(probs, (draws, *probs.shape)), rng.random((draws, n), np.float32),
        rng.random(draws, np.float32), 4, 1.0, threshold,
    )  # fmt: skip
    seen = Counter(tuple(path.emitted.tolist()) for path in accepted_paths(acceptance, n))
    law = biased_law(tokens, children_of(parents), probs, 4, threshold)
    assert o.against_the_law(seen, law).p_value > c.ALARM
    other = biased_law(tokens, children_of(parents), probs, 4, 0.8)
    assert o.against_the_law(seen, other).p_value < c.ALARM


# ------------------------------------------------------------------ the embedded engine


@pytest.mark.parametrize("mode", ["ddtree", "dflash"])
def test_a_sound_engine_passes_every_row(pair, mode):
    params = msgspec.structs.replace(PARAMS, mode=mode)
    rows = c.check_embedded(TorchEngine(pair), [params], SMALL, 0, quiet)
    assert [row.verdict for row in rows] == ["ok"] * 5
    assert c.exit_code(rows) == 0 and c.false_alarm_odds(rows) == 5 * c.ALARM
    assert rows[0].finds.startswith("threshold_acc 0.") and "nats" in rows[2].finds


def test_filters_are_part_of_the_law(pair):
    params = msgspec.structs.replace(PARAMS, temperature=0.6, top_k=0, top_p=0.9)
    rows = c.acceptance_rows(TorchEngine(pair), params, SMALL.draws, 0, quiet)
    assert [row.verdict for row in rows] == ["ok"] * 2


@pytest.mark.parametrize("fault", ["biased_coin", "greedy_kernel_at_temperature"])
def test_a_fault_of_the_engine_s_acceptance_is_named_and_the_twin_is_not(pair, fault):
    rows = c.acceptance_rows(ENGINES[fault](pair), PARAMS, SMALL.draws, 0, quiet)
    assert [row.verdict for row in rows] == ["ok", "DIFFERS"]
    assert "torch_engine" in rows[1].what


def test_biased_coins_show_in_generations_too(pair):
    rows = c.check_embedded(ENGINES["biased_coin"](pair), [PARAMS], SMALL, 0, quiet)
    assert "DIFFERS" in [row.verdict for row in rows if row.what.startswith("token")]


def test_a_threshold_below_1_is_caught_by_acceptance_and_generations(pair):
    biased = msgspec.structs.replace(PARAMS, threshold_acc=0.5)
    rows = c.check_embedded(TorchEngine(pair), [biased], SMALL, 0, quiet)
    assert [row.verdict for row in rows[:2]] == ["DIFFERS"] * 2
    assert "DIFFERS" in [row.verdict for row in rows[3:]]
    assert c.exit_code(rows) == 1


def test_the_bias_that_is_said_to_be_found_is_found(pair):
    """The report's threshold, in ten engines of it: 0.1 misses are expected, two have odds of 0.5 %."""
    engine = TorchEngine(pair)
    [row, _] = c.acceptance_rows(engine, PARAMS, 600, 0, quiet)
    found = float(row.finds.split()[1])
    step = o.small_step(engine, PARAMS, 0)
    law = o.law_of(step)
    probs = o.probs_of(step)
    biased = msgspec.structs.replace(PARAMS, threshold_acc=found)
    tests = [o.against_the_law(o.draws_of_twin(step, probs, biased, 600, seed), law) for seed in range(10)]
    assert sum(test.p_value >= c.ALARM for test in tests) <= 1


@pytest.mark.parametrize("fault", [None, "kv_not_packed", "chain_mask"])
@pytest.mark.parametrize("mode", ["ddtree", "ar"])
def test_an_engine_that_remembers_says_what_it_would_have_said(pair, fault, mode):
    engine = (ENGINES[fault] if fault else TorchEngine)(pair)
    sampler = s.EmbeddedSampler(engine, mode, seed=40)
    again = sampler.draw(8, PARAMS, quiet)
    asked = msgspec.structs.replace(PARAMS, mode=mode, max_new_tokens=s.TOKENS)
    plain = [engine.generate(msgspec.structs.replace(asked, seed=40 + i)).output_ids for i in range(8)]
    assert again == [tuple(output) for output in plain]


def test_equal_inputs_are_computed_once(pair):
    engine = remembering(TorchEngine(pair))
    asked = msgspec.structs.replace(PARAMS, max_new_tokens=3, seed=1)
    engine.generate(asked)
    before = engine.target.forwards
    engine.generate(asked)
    assert engine.target.forwards == before


def test_greedy_settings_are_misuse():
    for settings in ({"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}):
        with pytest.raises(BadValueError, match="needs a sampled setting"):
            c.require_sampled(GenerateParams(prompt="x", **settings))


# ------------------------------------------------------------------ a server


@pytest.fixture
def serve():
    servers = []

    def start(*args, **settings):
        servers.append(PlainServer(*args, **settings).start())
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_without_a_reference_nothing_is_checked_and_the_exit_code_says_so(serve, capsys):
    server = serve(algorithm="DDTREE")
    assert main(["losslessness", "--quick", "--url", server.url, "--json"]) == 1
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert row["verdict"] == "NOT CHECKED" and "--reference" in row["finds"]
    assert server.asked == []


def test_a_server_is_compared_with_another(serve, capsys):
    sound, other = serve(algorithm="DDTREE", seed=1), serve(seed=2)
    biased = serve(law=(0.3, 0.5, 0.2), algorithm="DDTREE", seed=3)
    words = ["losslessness", "--quick", "--generations", "400", "--reference", other.url, "--json"]
    assert main([*words, "--url", sound.url]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["verdict"] for row in rows] == ["ok"] * 3 and rows[0]["draws"] == 800
    assert main([*words, "--url", biased.url]) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["verdict"] for row in rows] == ["DIFFERS"] * 3
    assert sound.asked[0]["sampling_params"]["max_new_tokens"] == 3
    assert sum(len(body["text"]) for body in sound.asked) == 400


@pytest.mark.parametrize(
    ("dtype", "law", "differs"),
    [
        ("float32", (0.56, 0.26, 0.18), True),  # 0.007 nats from LAW
        ("bfloat16", (0.56, 0.26, 0.18), False),
        ("auto", (0.56, 0.26, 0.18), False),
        ("auto", (0.8, 0.12, 0.08), True),
    ],
)
def test_rounding_is_allowed_for_in_16_bits(serve, dtype, law, differs):
    servers = [s.ServerSampler(serve(law, "DDTREE", dtype=dtype).url), s.ServerSampler(serve(seed=1).url)]
    params = msgspec.structs.replace(PARAMS, top_k=0)
    rows = c.check_server(*servers, [params], 8000, quiet)
    assert [row.verdict == "DIFFERS" for row in rows] == [differs] * 3
    assert {row.as_dict()["allowed_nats"] for row in rows} == {0.0 if dtype == "float32" else 0.03}


@pytest.mark.parametrize("filters", [{"top_k": 5}, {"top_k": 0, "top_p": 0.9}], ids=str)
def test_a_filter_can_not_be_checked_in_16_bits(serve, filters):
    """The coarser dtype of both decides."""
    servers = [s.ServerSampler(serve(algorithm="DDTREE").url), s.ServerSampler(serve(dtype="bfloat16").url)]
    [row] = c.check_server(*servers, [msgspec.structs.replace(PARAMS, **filters)], 100, quiet)
    assert (row.verdict, row.finds) == ("NOT CHECKED", c.SWAPS)


def test_a_16_bit_server_is_asked_without_filters_unless_they_are_named(serve, capsys):
    server, other = serve(algorithm="DDTREE", dtype="auto"), serve(seed=2)
    words = ["losslessness", "--generations", "300", "--url", server.url, "--reference", other.url, "--json"]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["setting"] for row in rows] == ["T 1"] * 3 + ["T 0.6"] * 3
    assert main([*words, "--top-k", "5"]) == 1
    assert json.loads(capsys.readouterr().out)["rows"][0]["verdict"] == "NOT CHECKED"


def test_rounding_by_dtype_and_temperature():
    assert c.rounding_of("float32") == c.rounding_of("torch.float32", 0.3) == 0.0
    assert (
        c.rounding_of("half") < c.rounding_of("auto") == c.rounding_of("?") == c.rounding_of("bfloat16", 2.0)
    )
    assert c.rounding_of("auto", 0.5) == 4 * c.rounding_of("auto")
    assert c.settings_for("float32") == c.SETTINGS


def test_with_top_k_and_top_p_only_the_target_itself_is_a_reference(serve):
    server, other = s.ServerSampler(serve(algorithm="DDTREE").url), s.ServerSampler(serve().url)
    both = GenerateParams(prompt="x", temperature=1.0, top_k=3, top_p=0.9)
    [row] = c.check_server(server, other, [both], 10, quiet)
    assert row.verdict == "NOT CHECKED" and "jointly" in row.finds
    law = Law(LAW)
    rows = c.check_server(server, law, [both], 1500, quiet)
    assert [row.verdict for row in rows] == ["ok"] * 3
    rows = c.check_server(server, Law((0.3, 0.5, 0.2)), [both], 1500, quiet)
    assert [row.verdict for row in rows] == ["DIFFERS"] * 3


class Law(s.TargetLaw):
    """A target whose next token never depends on anything."""

    def __init__(self, law):
        self.name, self._law = "target_probs of a fake", np.array(law)

    def probs(self, prefix, params):
        return self._law


def test_the_target_s_law_is_that_of_the_target(serve, pair, tiny_folders):
    """Held against 500 first tokens of the embedded engine; the server is then asked with the same ids."""
    server = s.ServerSampler(serve(algorithm="DDTREE").url)
    law = s.target_law(server, PARAMS.prompt, str(tiny_folders["llama"][0]), "cpu")
    probs = law.probs((), PARAMS)
    sample = s.EmbeddedSampler(TorchEngine(pair), "ar", 0).draw(500, PARAMS, quiet)
    seen = np.bincount([output[0] for output in sample], minlength=len(probs))
    assert against_law(seen, probs).p_value > c.ALARM
    assert server.prompt_ids == pair.target.encode(PARAMS.prompt, False)[0]
    with pytest.raises(BadValueError, match="--target"):
        s.target_law(server, "x", None, "cpu")


def test_a_reference_is_started_and_ended(serve):
    server = s.ServerSampler(serve(algorithm="DDTREE").url)
    launch = (sys.executable, "-m", "tests.check.plain_server")
    with s.Restarted(server, launch=launch) as reference:
        assert reference.facts.algorithm is None and reference.facts.target == server.facts.target
        rows = c.check_server(server, reference, [PARAMS], 200, quiet)
    assert [row.verdict for row in rows] == ["ok"] * 3
    with pytest.raises(EngineError, match="does not answer"):
        reference.draw(1, PARAMS, quiet)


def test_a_reference_that_dies_is_told_with_its_last_words(serve):
    server = s.ServerSampler(serve(algorithm="DDTREE", target="broken").url)
    launch = (sys.executable, "-m", "tests.check.plain_server")
    with pytest.raises(EngineError, match="no such model"), s.Restarted(server, launch=launch):
        pass


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--reference", "embedded"], 2, "--reference is for --url"),
        (["--temperature", "0"], 2, "sampled setting"),
        (["--top-k", "1"], 2, "sampled setting"),
        (["--budget", "0"], 2, "budget is 0"),
        (["--url", "http://127.0.0.1:9"], 1, "does not answer"),
    ],
    ids=str,
)
def test_misuse_exits_2_and_a_server_that_is_not_there_1(words, code, sentence, capsys):
    assert main(["losslessness", *words]) == code
    assert sentence in capsys.readouterr().err


def test_a_reference_that_speculates_or_serves_another_target_is_misuse(serve, capsys):
    server, tree, other = serve(algorithm="DDTREE"), serve(algorithm="EAGLE"), serve(target="other")
    for reference, sentence in ((tree, "must not speculate"), (other, "serves other")):
        assert main(["losslessness", "--url", server.url, "--reference", reference.url]) == 2
        assert sentence in capsys.readouterr().err


def test_the_command_reports_the_embedded_engine_as_a_table_and_as_json(tiny_folders, capsys):
    target, draft = map(str, tiny_folders["llama"])
    words = ["losslessness", "--quick", "--draws", "300", "--generations", "200", "--budget", "60"]
    words += ["--topk-cap", "0", "--target", target, "--draft", draft, "--device", "cpu"]
    assert main(words) == 0
    assert capsys.readouterr().out.count("    ok  ") == 5
    assert main([*words, "--threshold-acc", "0.3", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert {row["verdict"] for row in told["rows"]} >= {"DIFFERS"}
    assert told["rows"][0]["setting"] == "T 1, top_k 5, threshold_acc 0.3"
