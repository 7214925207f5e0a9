"""`ddviz --engine sglang` and `ddviz --attach`: what is refused, and what reaches the engine."""

import pytest

from ddviz import cli
from ddviz.app import main as app
from ddviz.engines import sglang_server


@pytest.fixture
def launched(monkeypatch):
    """What `launch` was called with, and the engines that were made for it; nothing is served or started."""
    seen = {}
    monkeypatch.setattr(app, "launch", lambda engine, **settings: seen.update(engine=engine, **settings))
    monkeypatch.setattr(sglang_server, "OwnServer", lambda options, traces: (options, traces))
    monkeypatch.setattr(sglang_server, "AttachedServer", lambda url, traces: (url, traces))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    return seen


def said(capsys, *words):
    """Exit code and stderr."""
    code = cli.main([str(word) for word in words])
    return code, capsys.readouterr().err


def test_an_own_server_gets_its_models_and_everything_after_the_dashes(launched, tmp_path, capsys):
    words = ("--engine", "sglang", "--target", "T", "--draft", "D", "--dtype", "bfloat16", "--runs", tmp_path)
    assert said(capsys, *words, "--", "--tp", "2", "--trust-remote-code") == (0, "")
    options, traces = launched["engine"]
    assert (options.target, options.draft) == ("T", "D")
    assert options.extra == ("--dtype", "bfloat16", "--tp", "2", "--trust-remote-code")
    assert traces == tmp_path / "server"
    assert launched["runs"] == tmp_path


def test_an_attached_server_is_watched_in_its_folder(launched, tmp_path, capsys):
    assert said(capsys, "--attach", "http://127.0.0.1:30000", "--trace-dir", tmp_path) == (0, "")
    assert launched["engine"] == ("http://127.0.0.1:30000", tmp_path)
    assert launched["requests"] == tmp_path


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--engine", "sglang"), "--engine sglang needs --target and --draft"),
        (("--engine", "sglang", "--target", "T"), "needs --target and --draft"),
        (
            ("--engine", "sglang", "--target", "T", "--draft", "D", "--device", "cpu"),
            "--device is the embedded",
        ),
        (("--engine", "sglang", "--target", "T", "--draft", "D", "--dtype", "auto"), "--dtype auto is the"),
        (("--attach", "http://127.0.0.1:1"), "--attach needs --trace-dir DIR"),
        (("--attach", "http://127.0.0.1:1", "--trace-dir", "/no/such/folder"), "there is no such folder"),
        (("--attach", "http://127.0.0.1:1", "--trace-dir", ".", "--target", "T"), "leave out --target"),
        (("--trace-dir", "."), "--trace-dir is for --attach"),
    ],
)
def test_words_that_do_not_go_together_are_misuse_in_one_sentence(launched, capsys, words, sentence):
    code, err = said(capsys, *words)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert launched == {}


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "http://", "http://host/path", "ftp://host"])
def test_an_address_that_is_none_is_misuse(capsys, url):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--attach", url, "--trace-dir", "."])
    assert ended.value.code == 2
    assert "must be an address such as http://127.0.0.1:30000" in capsys.readouterr().err


def test_without_sglang_the_line_to_type_is_said(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, err = said(capsys, "--engine", "sglang", "--target", "T", "--draft", "D")
    assert code == 1
    assert "pip install 'ddviz[sglang]'" in err


def test_dashes_in_a_command_stay_that_commands(capsys):
    code, err = said(capsys, "show", "--", "--no-such-file.ddviz")
    assert (code, "no such file" in err) == (2, True)
