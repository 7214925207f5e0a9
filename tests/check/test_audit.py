"""The audit: silent on sound runs; faults of the engine are named where plain forwards can show them."""

import json

import numpy as np
import pytest

from ddviz.check.audit import DRAFT, TARGET, TEXT, audit, texts
from ddviz.check.plain import load_plain
from ddviz.cli import main
from ddviz.engines.base import GenerateParams
from ddviz.engines.torch_engine.engine import TorchEngine
from ddviz.engines.torch_engine.faults import ENGINES
from ddviz.engines.torch_engine.models import load_pair
from ddviz.engines.torch_engine.record import Recording
from ddviz.errors import RefusedError, TraceError
from ddviz.trace import load

WIDE = {"mode": "ddtree", "budget": 200, "topk_cap": 0}  # covers most of the vocabulary: nodes are accepted


@pytest.fixture(scope="module")
def record(tiny_folders, tmp_path_factory):
    """record(fault, family=..., dtype=...) -> a trace of 6 tokens, each once."""
    made = {}

    def run(fault=None, family="llama", dtype="float32", **settings):
        key = (fault, family, dtype, *settings.items())
        if key not in made:
            kind = ENGINES[fault] if fault else TorchEngine
            engine = kind(load_pair(*map(str, tiny_folders[family]), dtype, "cpu"))
            path = tmp_path_factory.mktemp("audit") / "x.ddviz"
            params = {
                "prompt": "Hello",
                "seed": 3,
                "max_new_tokens": 6,
                "temperature": 1.0,
                **WIDE,
                **settings,
            }
            with Recording(path) as recording:
                engine.generate(GenerateParams(**params), recording)
            made[key] = load(path)
        return made[key]

    return run


@pytest.fixture(scope="module")
def judge(tiny_folders):
    """judge(trace) -> its report, by models loaded once."""
    loaded = {}

    def run(trace, family="llama", **settings):
        key = (family, trace.header.engine.options["dtype"], trace.header.algorithm == "AR")
        if key not in loaded:
            loaded[key] = load_plain(trace.header, *map(str, tiny_folders[family]), "cpu")
        return audit(trace, *loaded[key], **settings)

    return run


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_sound_run_is_clean_and_every_node_was_compared(record, judge, family):
    trace = record(family=family)
    report = judge(trace, family)
    nodes = sum(len(step.tree.tokens) for step in trace.steps)
    assert report.findings == [] and report.skipped == {}
    assert (report.target.places, report.target.steps) == (nodes, len(trace.steps))
    assert report.target.values == nodes * (8 + 2) + (
        nodes - len(trace.steps)
    )  # m, two sums; a root has no own
    assert 0 < report.target.worst < report.target.tolerance / 10
    assert report.draft.places == 5 * len(trace.steps) and report.draft.worst < report.draft.tolerance / 10


def test_a_run_in_bfloat16_is_clean_within_its_own_tolerance_alone(record, judge):
    report = judge(record(dtype="bfloat16"))
    assert report.findings == []
    assert 0.01 < report.target.worst < report.target.tolerance
    assert (report.target.tolerance, report.draft.tolerance) == (1.5, 1.0)


@pytest.mark.parametrize("settings", [{"mode": "ar"}, {"mode": "dflash"}, {"temperature": 0.0}], ids=str)
def test_chains_single_tokens_and_greedy_runs_are_clean(record, judge, settings):
    report = judge(record(**settings))
    assert report.findings == [] and report.target.steps >= 2
    assert (report.draft is None) == (settings.get("mode") == "ar") == bool(report.draft_note)


@pytest.mark.parametrize(
    ("fault", "dtype"),
    [
        ("chain_mask", "float32"),
        ("position_by_index", "float32"),
        ("kv_not_packed", "float32"),
        ("kv_not_packed", "bfloat16"),
    ],
)
def test_a_target_that_saw_the_wrong_thing_is_named_at_its_first_step_and_node(record, judge, fault, dtype):
    """A wrong mask or position shows in the first tree, unpacked KV in the root after it."""
    report = judge(record(fault, dtype=dtype))
    first, *others = report.findings
    assert first.rule == TARGET and TARGET not in [finding.rule for finding in others]
    if fault == "kv_not_packed":
        assert first.step >= 1 and first.node == 0 and "not packed" in first.cause
    else:
        assert first.step == 0 and first.node >= 1 and "ancestors" in first.cause
    assert "recorded" in first.message and "plain forward gives" in first.message


def test_a_drafter_fed_other_features_is_named_and_the_target_is_not(record, judge):
    report = judge(record("wrong_feature_layer"))
    assert [finding.rule for finding in report.findings] == [DRAFT]
    assert report.findings[0].step == 0 and "features" in report.findings[0].cause
    assert report.target.steps == len(record("wrong_feature_layer").steps)


@pytest.mark.parametrize("fault", ["biased_coin", "greedy_kernel_at_temperature"])
def test_wrong_decisions_on_right_logits_are_not_its_business(record, judge, fault):
    report = judge(record(fault, seed=7))
    assert report.findings == [] and report.target.steps


def test_one_number_that_was_changed_is_found_at_its_step_and_node(record, judge):
    trace = record()
    steps = list(trace.steps)
    steps[1].target.raw.top_probs[7][2] *= 1.1  # 0.095 nats
    report = judge(_with(trace, steps))
    assert [(f.rule, f.step, f.node) for f in report.findings] == [(TARGET, 1, 7)]
    assert f"token {steps[1].target.raw.top_ids[7][2]} " in report.findings[0].message


def test_a_text_that_does_not_lead_to_the_root_is_a_finding_and_not_compared(record, judge):
    trace = record()
    steps = list(trace.steps)
    steps[0].emitted = steps[0].emitted[:-1]
    report = judge(_with(trace, steps))
    assert [(f.rule, f.step) for f in report.findings] == [(TEXT, 1)]
    assert report.target.steps == 1


def test_dropped_steps_are_bridged_by_the_end_event(record):
    trace = record()
    kept = [step for step in trace.steps if step.index != 1]
    for step, text in texts(_with(trace, kept)):
        assert len(text) == step.prefix_len + 1 and text[-1] == step.tree.tokens[0]


def test_steps_can_be_chosen_and_one_that_is_not_there_is_misuse(record, judge):
    report = judge(record(), steps=range(1, 2))
    assert report.target.steps == 1
    with pytest.raises(TraceError, match="no step from 900 on"):
        judge(record(), steps=range(900, 901))


def test_what_was_not_recorded_can_not_be_audited(record, judge):
    trace = record()
    steps = list(trace.steps)
    for step in steps:
        step.target = None
    with pytest.raises(TraceError, match="not recorded"):
        judge(_with(trace, steps))


def test_models_that_are_not_there_or_not_the_trace_s_are_refused(record, tiny_folders, monkeypatch):
    header = record().header
    with pytest.raises(RefusedError, match="no such folder"):
        load_plain(header, "./none")
    monkeypatch.setattr(header, "vocab_size", 99)
    with pytest.raises(RefusedError, match=r"vocabulary of \d+, the trace's of 99"):
        load_plain(header, *map(str, tiny_folders["llama"]), "cpu")


def test_padding_does_not_reach_a_row(record, judge, tiny_folders):
    """A short path beside a long one gives what it gives alone."""
    target, _, _ = load_plain(record().header, *map(str, tiny_folders["llama"]), "cpu")
    alone = target.logprobs([5, 6, 7], [[8]])[0][0]
    beside = target.logprobs([5, 6, 7], [[9, 10, 11, 12], [8]])[1][0]
    assert alone.shape == beside.shape
    np.testing.assert_allclose(alone, beside, atol=1e-4)


def test_the_command_exits_0_clean_1_with_findings_2_on_misuse(record, tiny_folders, capsys):
    target, draft = map(str, tiny_folders["llama"])
    models = ["--target", target, "--draft", draft, "--device", "cpu"]
    assert main(["audit", str(record().path), *models]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{record().path}: clean") and "nodes of" in said
    sick = record("position_by_index").path
    assert main(["audit", str(sick), "--json", "--steps", "0:1", *models]) == 1
    held = json.loads(capsys.readouterr().out)[str(sick)]
    assert held["findings"][0]["rule"] == TARGET and held["target"]["steps"] == 1
    assert main(["audit", "none.ddviz"]) == 2
    assert main(["audit", str(sick), "--target", "./none"]) == 2
    with pytest.raises(SystemExit, match="2"):
        main(["audit", str(sick), "--steps", "5:2"])


class _with:  # noqa: N801, reads as a function
    """A trace with other steps."""

    def __init__(self, trace, steps):
        self._trace, self.steps = trace, steps

    def __getattr__(self, name):
        return getattr(self._trace, name)
