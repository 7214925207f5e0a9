"""Every command, as a user types it, with its exit code.

Most run in this process. In a process of its own (`typed`) runs what is about the process: exit codes of each
kind, signals, the whole of stderr, a taken port.
"""

import errno
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time

import pytest

from ddviz.check.doctor import examine, faults
from ddviz.cli import EXIT_CODES, main, make_parser
from ddviz.cli.terminal import Progress
from ddviz.errors import DdvizError, cant_write
from ddviz.trace import load
from tests.commands import ROOT, ddviz, typed


@pytest.fixture(scope="module")
def tiny(tiny_folders):
    target, draft = tiny_folders["llama"]
    return ["--target", target, "--draft", draft, "--device", "cpu"]


@pytest.fixture(scope="module")
def trace(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "x.ddviz"
    done = ddviz(
        "record", "--prompt", "hi", "--out", path, "--temperature", 1, "--seed", 5, "--budget", 60,
        "--topk-cap", 0, "--max-tokens", 12, *tiny,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "accept length" in done.stderr
    return path


def test_record_takes_the_settings_it_is_given(trace):
    header = load(trace).header
    assert (header.budget, header.topk_cap) == (60, 0)
    assert (header.sampling.temperature, header.sampling.seed) == (1.0, 5)
    assert header.sampling.max_new_tokens == 12


def test_record_does_not_overwrite_unless_forced(trace, tiny):
    before = trace.read_bytes()
    again = ["record", "--prompt", "hi", "--out", trace, "--mode", "ar", "--max-tokens", 3, *tiny]
    refused = ddviz(*again)
    assert refused.returncode == 2 and "exists already" in refused.stderr and trace.read_bytes() == before
    copy = trace.with_name("copy.ddviz")
    copy.write_bytes(before)
    again[4] = copy
    assert ddviz(*again, "--force").returncode == 0
    assert load(copy).header.algorithm == "AR"


def test_show_prints_a_summary_a_tree_and_json(trace):
    assert "accept length" in ddviz("show", trace).stdout
    tree = ddviz("show", trace, "--step", 0)
    assert tree.returncode == 0 and "bonus" in tree.stdout
    assert json.loads(ddviz("show", trace, "--json").stdout)
    assert json.loads(ddviz("show", trace, "--step", 1, "--json").stdout)["step"]["index"] == 1


def test_show_names_a_step_that_is_not_there(trace):
    done = ddviz("show", trace, "--step", 999)
    assert done.returncode == 2 and "999" in done.stderr and "Traceback" not in done.stderr


def test_doctor_exits_0_clean_1_with_findings_2_on_misuse(trace, tmp_path):
    assert typed("doctor", trace).returncode == 0
    cut = tmp_path / "cut.ddviz"
    cut.write_bytes(trace.read_bytes()[:-40])
    found = typed("doctor", cut, "--json")
    assert found.returncode == 1 and json.loads(found.stdout)
    both = typed("doctor", trace, cut, "--json")
    assert both.returncode == 1 and list(json.loads(both.stdout)) == [str(trace), str(cut)]
    for misuse in (
        ["doctor"],
        ["doctor", tmp_path / "none.ddviz"],
        ["doctor", __file__],
        ["doctor", "--live", trace, cut],
    ):
        assert typed(*misuse).returncode == 2, misuse


def test_import_makes_a_trace_that_show_reads(tmp_path):
    source, out = tmp_path / "ref.json", tmp_path / "out.ddviz"
    rounds = [
        {
            "accepted_indices": [0, 1],
            "tree": {"node_token_ids": [7, 8], "node_depths": [1, 1], "parents": [-1, 0, 0]},
        },
        {"accepted_indices": [0], "tree": {"node_token_ids": [4], "node_depths": [1], "parents": [-1, 0]}},
    ]
    ids = [1, 2, 3, 5, 7, 9, 6]  # prompt 1 2 3, first token 5, then 7 and its bonus 9, then 6
    source.write_text(json.dumps({"round_trees": rounds, "output_ids": ids, "num_input_tokens": 3}))
    done = ddviz("import", source, out)
    assert done.returncode == 0, done.stderr
    assert load(out).output_ids == [5, 7, 9, 6]
    assert ddviz("show", out, "--step", 0).returncode == 0
    assert ddviz("doctor", out).returncode == 0
    assert ddviz("import", source, out).returncode != 0


def test_bench_measures_each_mode_and_compares_with_autoregression(tiny, tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"messages": [{"role": "user", "content": "two"}], "tag": "x"}\n')
    settings = ["--prompts", prompts, "--max-tokens", 10, "--budget", 60, "--topk-cap", 0, *tiny]
    done = ddviz("bench", *settings, "--modes", "ar,dflash,ddtree", "--json")
    assert done.returncode == 0, done.stderr
    modes = json.loads(done.stdout)["modes"]
    assert set(modes) == {"ar", "dflash", "ddtree"}
    assert all(mode["equals_ar"] is True and mode["tokens_per_s"] > 0 for mode in modes.values())
    assert modes["ar"]["accept_length"] == 1.0 and modes["ddtree"]["accept_length"] > 1.0
    sampled = json.loads(ddviz("bench", *settings, "--temperature", 1, "--json", "--limit", 1).stdout)[
        "modes"
    ]
    assert sampled["ddtree"]["equals_ar"] is None and sampled["ar"]["prompts"] == 1
    table = ddviz("bench", *settings, "--tag", "x").stdout
    assert "2 of 2" not in table and "1 of 1" in table


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["record", "--prompt", " ", "--out", "x.ddviz"], "prompt is empty"),
        (["record", "--prompt", "hi", "--out", "x.ddviz", "--budget", "0"], "budget is 0"),
        (["record", "--prompt", "hi", "--out", "x.ddviz", "--temperature", "-1"], "temperature is -1"),
        (["record", "--prompt", "hi", "--out", "x.ddviz", "--mode", "nonsense"], "invalid choice"),
        (["bench", "--prompts", "x", "--modes", "ar,ar"], "each once at most"),
        (["bench", "--prompts", "x", "--limit", "0"], "must be a whole number"),
        (["nonsense"], "invalid choice"),
        (["--port", "99999"], "'99999': must be a port from 1 to 65535, or 0 for any free one"),
        (["--port", "-1"], "'-1': must be a port"),
        (
            ["--host", "0.0.0.0"],
            "0.0.0.0 is reached from other machines, so it needs a password: --auth-file FILE",
        ),
        (["--auth-file", "none.txt"], "none.txt: can't read it"),
        (["--auth-file", "README.md"], "README.md: line 1 is no NAME:SALT:HASH"),
        (["--auth-file", "x", "--allow-unauthenticated"], "contradict each other"),
        (["--allowed-host", "http://a.b/"], "--allowed-host http://a.b/ is no name of a host"),
        (["password", "a:b", "--auth-file", "none.txt"], "'a:b' is no name"),
        (
            ["--allow-unauthenticated", "--host", "nosuchhost.invalid"],
            "can't listen on nosuchhost.invalid port 7860",
        ),
        (["--allow-unauthenticated", "--host", "192.0.2.1"], "can't listen on 192.0.2.1 port 7860"),
        (["record", "--prompt", b"a \xff b", "--out", "x.ddviz"], "the prompt is no valid UTF-8 text: char"),
        (["record", "--prompt", "hi", "--out", "x.ddviz", "--temperature", "inf"], "must be a finite number"),
        (["record", "--prompt", "hi", "--out", "x.ddviz", "--temperature", "nan"], "must be a finite number"),
        (["record", "--prompt", "hi", "--out", "/dev/full"], "/dev/full: is no regular file"),
        (["record", "--prompt", "hi", "--out", "/dev/full", "--force"], "/dev/full: is no regular file"),
        (["record", "--prompt", "hi", "--out", "tests"], "tests: is a folder"),
        (
            ["record", "--prompt", "hi", "--out", "docs/x.ddviz", "--device", "mps"],
            "no such device: mps",
        ),
        (
            ["bench", "--prompts", "benchmarks/prompts.jsonl", "--tag", "nosuch"],
            "no prompts with tag 'nosuch'",
        ),
        (["bench", "--prompts", "none.jsonl"], "none.jsonl: can't read prompts there"),
        (["show", "none.ddviz"], "none.ddviz: no such file"),
        (["show", "tests"], "tests: is a folder"),
        (["show", "README.md"], "README.md: not a .ddviz trace"),
        (["doctor", "docs"], "docs: no .ddviz file in it"),
        (["export", "README.md", "--to", "html", "--out", "none.html"], "README.md: not a .ddviz trace"),
        (["export", "README.md", "--to", "html", "--out", "/dev/full"], "/dev/full: is no regular file"),
        (["import", "none.json", "none.ddviz"], "none.json: can't read it"),
        (["import", "README.md", "none.ddviz"], "README.md: not JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value)),
)
def test_misuse_exits_2_with_a_sentence(args, sentence, monkeypatch):
    monkeypatch.setattr("ddviz.engines.process.EngineProcess", lambda options: None)  # starts at once
    done = ddviz(*args)
    assert done.returncode == 2 and sentence in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 or done.stderr.startswith("usage: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--target", "./none"], "there is no such folder"),
        (["--target", "tests"], "the target tests could not be loaded"),
        (["--draft", "tests"], "no DFlash drafter there"),
        (["--no-chat", "--max-tokens", "3", "--mode", "ar"], "the target's context holds"),
    ],
    ids=" ".join,
)
def test_a_model_or_prompt_that_can_not_be_had_is_misuse(tiny, tmp_path, args, sentence):
    done = ddviz("record", "--prompt", "hi " * 900, "--out", tmp_path / "x.ddviz", *tiny, *args)
    assert done.returncode == 2 and sentence in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "x.ddviz").exists()


def test_a_prompt_of_a_file_that_is_no_text_is_named_with_its_line(tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "a \\ud800"}\n')
    done = ddviz("bench", "--prompts", prompts)
    assert done.returncode == 2 and f"{prompts}: line 2: the prompt is no valid UTF-8" in done.stderr


def test_a_taken_port_is_a_failure_and_port_0_is_any_free_one():
    from ddviz.app.main import _free_port

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = typed("--port", port)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ddviz: 127.0.0.1 port {port} is taken; ")
    assert _free_port("127.0.0.1", 0) > 0


def test_what_a_disk_does_is_a_failure_and_a_wrong_name_is_misuse():
    full, wrong = OSError(errno.ENOSPC, "No space left"), OSError(errno.EACCES, "Permission denied")
    assert (cant_write("x", full).exit_code, cant_write("x", wrong).exit_code) == (1, 2)
    assert str(cant_write("x: can't write it", full)) == "x: can't write it (No space left)"


def test_help_tells_the_exit_codes():
    told = " ".join(ddviz("--help").stdout.split())
    assert " ".join(EXIT_CODES.split()) in told


@pytest.mark.parametrize(
    "args",
    [
        ["record", "--prompt", "hi", "--out", "x.ddviz", "--temperature", "-1"],
        ["record", "--prompt", " ", "--out", "x.ddviz"],
        ["bench", "--prompts", "benchmarks/none.jsonl"],
        ["bench", "--prompts", "benchmarks/prompts.jsonl", "--budget", "0"],
    ],
    ids=" ".join,
)
def test_what_can_be_refused_without_torch_is_refused_before_it_is_loaded(args):
    code = f"import sys; from ddviz.cli import main; rc = main({args!r}); print(rc, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() in (["1", "False"], ["2", "False"]), done.stderr


def test_a_folder_that_was_not_there_is_made_and_named(tmp_path, tiny):
    out = tmp_path / "a" / "b" / "x.ddviz"
    done = ddviz("record", "--prompt", "hi", "--out", out, "--mode", "ar", "--max-tokens", 3, *tiny)
    assert done.returncode == 0 and load(out).end
    assert f"{out.parent}: folder made\n" in done.stderr
    (tmp_path / "file").write_text("")
    refused = ddviz("record", "--prompt", "hi", "--out", tmp_path / "file" / "x.ddviz", *tiny)
    assert refused.returncode == 2 and "can't make the folder" in refused.stderr


def test_off_a_terminal_progress_is_whole_lines(tiny, tmp_path, capsys):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    done = ddviz("bench", "--prompts", prompts, "--max-tokens", 3, "--modes", "ar", *tiny)
    assert done.returncode == 0
    assert done.stderr.splitlines() == ["Running 2 prompts in each of ar"]
    with Progress() as progress:
        for share in range(3):
            progress("fetching", f"{share} %")
        progress("checking")
    assert capsys.readouterr().err == "fetching\nchecking\n"


def test_on_a_terminal_a_detail_is_written_over(monkeypatch):
    here, there = pty.openpty()
    with os.fdopen(there, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Progress() as progress:
            progress("fetching", "0 %")
            progress("fetching", "9 %")
            progress("checking")
        monkeypatch.undo()
        shown = b""
        while not shown.endswith(b"K\r\n") and select.select([here], [], [], 2)[0]:  # it comes in pieces
            shown += os.read(here, 1000)
    os.close(here)
    shown = shown.replace(b"\r\n", b"\n").decode()
    assert shown == "\rfetching 0 %\x1b[K\rfetching 9 %\x1b[K\nchecking \x1b[K\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_between_two_steps_and_closes_its_trace(tiny, tmp_path, number, code):
    path = tmp_path / "x.ddviz"
    run = recording(tiny, path)
    wait_until(lambda: path.exists() and path.stat().st_size > 20_000)  # steps are there
    run.send_signal(number)
    _, told = run.communicate(timeout=60)
    assert run.returncode == code, told
    assert len(told.splitlines()) == 1 and "finished: stopped" in told  # nor has a library said anything
    trace = load(path)
    assert trace.damage is None and len(trace.steps) >= 2
    assert trace.end.finish_reason == "stopped" and faults(examine(trace)) == []


def test_a_signal_while_loading_ends_at_once(tiny, tmp_path):
    path = tmp_path / "new" / "x.ddviz"
    run = recording(tiny, path)
    assert "folder made" in run.stderr.readline()  # said before torch is imported, which takes a second
    run.send_signal(signal.SIGTERM)
    _, told = run.communicate(timeout=60)
    assert run.returncode in (143, -signal.SIGTERM) and "Traceback" not in told
    assert not path.exists()


def recording(tiny, path):
    """A run of hundreds of steps, under way."""
    args = ["--prompt", "hi", "--out", path, "--max-tokens", 450, "--mode", "ar", "--temperature", 1]
    args += ["--seed", 1]  # one that meets no stop token
    return subprocess.Popen(
        [sys.executable, "-m", "ddviz.cli", "record", *map(str, [*args, *tiny])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(condition, seconds=120):
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline, "it did not come to pass"
        time.sleep(0.005)


def test_a_prompts_file_that_is_none_is_named_with_its_line(tmp_path, tiny):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"question": "two"}\n')
    done = ddviz("bench", "--prompts", prompts, *tiny)
    assert done.returncode == 2 and "line 2" in done.stderr


def test_engine_options_may_stand_before_the_command():
    from ddviz.cli.common import engine_options

    before = make_parser().parse_args(
        ["--target", "T", "--dtype", "bfloat16", "record", "--prompt", "x", "--out", "y"]
    )
    assert (engine_options(before).target, engine_options(before).dtype) == ("T", "bfloat16")
    record = make_parser().parse_args(["record", "--prompt", "x", "--out", "y"])
    assert engine_options(record).dtype == "float32"
    assert engine_options(make_parser().parse_args([]), dtype="auto").dtype == "auto"


def test_a_name_that_a_terminal_would_obey_is_told_by_number(tmp_path):
    done = ddviz("show", tmp_path / "a\x1b[31m.ddviz")
    assert done.returncode == 2 and "\x1b" not in done.stderr and "a⟨U+001B⟩[31m.ddviz" in done.stderr


def test_an_error_of_several_lines_stays_so(monkeypatch, capsys):
    def fails(path):
        raise DdvizError("the server died:\n  a \x1b line\n  another")

    monkeypatch.setattr("ddviz.trace.load", fails)
    assert main(["show", "x.ddviz"]) == 1
    assert capsys.readouterr().err == "ddviz: the server died:\n  a ⟨U+001B⟩ line\n  another\n"


def test_every_option_has_a_help_text():
    parsers = [make_parser()]
    for action in parsers[0]._actions:
        parsers += list((action.choices or {}).values()) if hasattr(action.choices, "values") else []
    assert len(parsers) >= 11
    missing = [
        (parser.prog, action.option_strings)
        for parser in parsers
        for action in parser._actions
        if action.option_strings and not action.help
    ]
    assert missing == []


def test_help_and_version_exit_0():
    assert typed("--help").returncode == 0
    assert typed("record", "--help").returncode == 0
    assert typed("--version").stdout.startswith("ddviz 0.")
