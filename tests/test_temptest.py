"""The temperature test: each check on runs made for it; the command on the embedded engine and a server."""

import dataclasses
import json

import msgspec
import pytest

from ddviz import temptest as t
from ddviz.cli import main
from ddviz.engines.base import EngineStatus, GenerateParams, ModelInfo
from ddviz.errors import BadValueError, EngineError
from ddviz.trace import load
from tests.fake_sglang import FakeServer
from tests.synthetic import Setup, make_trace, write_trace

MODEL = ModelInfo(
    target="hash",
    draft="noisy hash",
    block_size=5,
    context_length=99,
    vocab_size=24,
    device="here",
    dtype="float32",
)


class SyntheticServer:
    """An Engine whose runs are synthetic traces. `changes` override a run's Setup, by temperature."""

    def __init__(self, changes=None, log=(), error=None):
        self.changes, self.lines, self.error, self.asked = changes or {}, list(log), error, []

    def status(self):
        return EngineStatus(state="ready", model=MODEL, error=self.error)

    def log(self):
        return self.lines

    def generate(self, params, trace):
        self.asked.append(params)
        algorithm = {"ar": "AR", "dflash": "DFLASH", "ddtree": "DDTREE"}[params.mode]
        setup = Setup(
            seed=7,  # the model's too: the same for all, but for the coins
            algorithm=algorithm,
            temperature=params.temperature,
            budget=params.budget,
            topk_cap=params.topk_cap,
            max_new_tokens=params.max_new_tokens,
            stop_token_ids=(),
        )
        changes = self.changes.get((params.mode, params.temperature), {})
        if params.temperature and "seed" not in changes:
            changes = {**changes, "seed": params.seed}
        write_trace(trace, dataclasses.replace(setup, **changes))


def bench_of(engine, tmp_path, **changes):
    params = GenerateParams(prompt="-", budget=12, topk_cap=3, max_new_tokens=16, seed=1)
    return t.Bench(engine, changes.pop("model", MODEL), ["a", "b"], params, tmp_path, **changes)


def verdicts(report):
    return {row.name: row.verdict for row in report.rows}


def test_a_right_engine_passes_every_check_and_leaves_every_trace(tmp_path):
    engine = SyntheticServer()
    report = t.temptest(bench_of(engine, tmp_path), [0.6, 1.0])
    assert report.is_clean, [(row.name, row.says) for row in report.rows]
    assert list(verdicts(report)) == [
        *("autoregression", "greedy", "T = 0.6", "T = 1"),
        *("diversity, T = 0.6", "diversity, T = 1", "doctor", "log"),
    ]
    assert len(list(tmp_path.glob("*.ddviz"))) == 2 * 6
    warm_ups = [params for params in engine.asked if params.max_new_tokens == t.WARM_UP_TOKENS]
    assert len(warm_ups) == 4 and engine.asked[: len(warm_ups)] == warm_ups


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({("ddtree", 0.0): {"seed": 8}}, {"greedy"}),  # another model's output
        ({("ddtree", 0.6): {"temperature": 0.0, "seed": 7}}, {"T = 0.6", "diversity, T = 0.6"}),
        ({("ddtree", 0.6): {"seed": 9}}, {"diversity, T = 0.6"}),  # draws the same coins for every request
    ],
)
def test_what_is_wrong_fails_its_own_check(tmp_path, changes, failing):
    report = t.temptest(bench_of(SyntheticServer(changes), tmp_path), [0.6])
    assert {name for name, verdict in verdicts(report).items() if verdict == "FAIL"} == failing
    assert not report.is_clean


def test_an_error_in_the_log_fails_and_harmless_lines_do_not(tmp_path):
    harmless = ["FutureWarning: x is deprecated", "error_rate=0", "nanoseconds", "Load weight end."]
    assert (
        t.log_row(bench_of(SyntheticServer(log=harmless), tmp_path, lines=dict.fromkeys(harmless))).verdict
        == "PASS"
    )
    for bad in (
        "RuntimeError: CUDA error: x",
        "Traceback (most recent call last):",
        "[2026] ERROR: x",
        "loss nan",
    ):
        row = t.log_row(bench_of(SyntheticServer(), tmp_path, lines={bad: None}))
        assert row.verdict == "FAIL" and bad in row.says
    path = tmp_path / "server.log"
    path.write_text("fine\nCUDA out of memory\n")
    assert t.log_row(bench_of(SyntheticServer(), tmp_path, log_file=path)).verdict == "FAIL"
    with pytest.raises(BadValueError, match="can't read"):
        t.log_row(bench_of(SyntheticServer(), tmp_path, log_file=tmp_path / "none"))


def test_a_near_tie_is_an_excuse_in_16_bits_alone():
    """bfloat16 keeps 7 bits: beside logits of 20 its steps are 0.125."""
    close, far = t.Parting(5, 0.25, 20.0), t.Parting(5, 0.26, 20.0)
    assert [close.is_near_tie(d) for d in ("bfloat16", "float16", "float32")] == [True, False, False]
    assert not far.is_near_tie("bfloat16") and not t.Parting(5, None, None).is_near_tie("bfloat16")


def test_the_dtype_is_the_one_that_is_named():
    trace = make_trace(Setup(seed=4))
    for options, said, dtype in (
        ({}, "float32", "float32"),
        ({"dtype": "bfloat16"}, "auto", "bfloat16"),
        ({"dtype": "auto"}, "bfloat16", "bfloat16"),
    ):
        engine = msgspec.structs.replace(trace.header.engine, options=options)
        trace.header = msgspec.structs.replace(trace.header, engine=engine)
        assert t.dtype_of(trace, msgspec.structs.replace(MODEL, dtype=said)) == dtype


def test_where_outputs_part_the_row_that_decided_is_found():
    trace = make_trace(Setup(seed=4, noise=0.3, stop_token_ids=()))
    expected = list(trace.output_ids)
    assert t.parting(trace, expected) is None
    for position in range(1, len(expected)):
        wrong = [*expected[:position], expected[position] + 1]
        found = t.parting(trace, wrong)
        assert found.position == position
        assert found.margin > 0 and found.top_logit is not None
    assert t.parting(trace, [99]) == t.Parting(0, None, None)
    assert t.parting(trace, expected[:-1]).position == len(expected) - 1


def test_without_an_autoregressive_mode_greedy_needs_a_reference(tmp_path):
    server = msgspec.structs.replace(MODEL, modes=("ddtree", "dflash"))
    engine = SyntheticServer({("ddtree", 0.6): {"temperature": 0.6}})

    class Same:
        def output_ids(self, params):
            return make_trace(Setup(seed=7, max_new_tokens=16, stop_token_ids=())).output_ids

    traces = [make_trace(Setup(seed=7, max_new_tokens=16, stop_token_ids=()))] * 2
    alone = bench_of(engine, tmp_path, model=server)
    assert t.greedy_row(alone, traces, None).verdict == "NOT CHECKED"
    assert not t.Report(server, [t.greedy_row(alone, traces, None)], "test").is_clean
    assert (
        t.greedy_row(bench_of(engine, tmp_path, model=server, reference=Same()), traces, None).verdict
        == "PASS"
    )
    assert t.log_row(alone).verdict == "NOT CHECKED"


def test_a_sweep_asks_every_budget_with_every_cap_at_every_temperature(tmp_path):
    report = t.sweep(bench_of(SyntheticServer(), tmp_path), [0.0, 1.0], [4, 8], [2, 3])
    names = [(row.temperature, row.name) for row in report.rows if not row.verdict]
    settings = ["ar", "4-2", "4-3", "8-2", "8-3"]
    assert names == [(temperature, name) for temperature in (0.0, 1.0) for name in settings]
    assert all(row.figures.steps for row in report.rows if not row.verdict)


def test_an_engine_that_refuses_or_is_too_small_is_told(tmp_path):
    with pytest.raises(EngineError, match="no room"):
        t.temptest(bench_of(SyntheticServer(error="no room"), tmp_path), [1.0])
    small = msgspec.structs.replace(MODEL, max_budget=8)
    with pytest.raises(BadValueError, match="budget of 8"):
        t.temptest(bench_of(SyntheticServer(), tmp_path, model=small), [1.0])


def test_a_folder_with_traces_is_not_mixed_up(tmp_path):
    t.require_empty(tmp_path / "new")
    t.require_empty(tmp_path)
    write_trace(tmp_path / "old.ddviz", Setup())
    with pytest.raises(BadValueError, match="traces already"):
        t.require_empty(tmp_path)
    assert main(["temptest", "--out", str(tmp_path)]) == 2


def test_the_command_on_the_embedded_engine(engine_process, tmp_path, capsys, monkeypatch):
    class Kept:  # a process of its own would load for seconds
        def __getattr__(self, name):
            return (lambda: None) if name == "close" else getattr(engine_process, name)

    monkeypatch.setattr("ddviz.cli.trials._temptest_engine", lambda args: Kept())
    out = tmp_path / "out"
    tree = ["--budget", "60", "--topk-cap", "0", "--max-tokens", "12", "--seed", "3"]
    run = ["temptest", *tree, "--limit", "1", "--out", str(out)]
    assert main([*run, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["clean"] and {row["verdict"] for row in said["rows"]} == {"PASS", None}
    traces = sorted(path.name for path in out.glob("*.ddviz"))
    assert traces == sorted(
        f"{name}-1.ddviz" for name in ("greedy-ar", "greedy", "t0.6", "t0.6-again", "t1", "t1-again")
    )
    assert load(out / "t0.6-1.ddviz").header.sampling.temperature == 0.6


@pytest.mark.parametrize(
    "wrong",
    [["--url", "http://127.0.0.1:1"], ["--temperatures", "-1"], ["--prompts", "none.jsonl"], ["--url", "x"]],
)
def test_misuse_is_told_before_an_engine_starts(wrong):
    try:
        code = main(["temptest", *wrong])
    except SystemExit as end:
        code = end.code
    assert code == 2


def test_the_command_on_a_server(tmp_path, capsys):
    """tests/fake_sglang.py tells the same story every time: diversity fails, and greedy has no reference."""
    folder = tmp_path / "server"
    folder.mkdir()
    server = FakeServer(folder, step_s=0.0)
    plain = FakeServer(None, algorithm=None, has_plugin=False, step_s=0.0)
    run = ["temptest", "--url", server.url, "--trace-dir", str(folder), "--limit", "1", "--max-tokens", "12"]
    try:
        assert main([*run, "--json"]) == 1
        said = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
        assert said["greedy"]["verdict"] == said["log"]["verdict"] == "NOT CHECKED"
        assert said["diversity, T = 1"]["verdict"] == "FAIL"
        assert said["T = 1"]["accept_length"] > 1
        assert main([*run, "--reference", plain.url, "--json"]) == 1
        said = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
        assert said["greedy"]["verdict"] == "FAIL" and "parts at token 1" in said["greedy"]["says"]
        assert main([*run, "--reference", server.url]) == 2
    finally:
        server.close()
        plain.close()
