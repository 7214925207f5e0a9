"""Who is let in: loopback alone, unless a password or a plain word says otherwise."""

import asyncio
import errno
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ddviz.app.access import Access, Passwords, is_loopback, remove_password, set_password
from ddviz.app.main import launch
from ddviz.errors import BadValueError
from tests.commands import ddviz, typed


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"])
def test_this_machine_needs_no_password(host):
    assert is_loopback(host)
    Access().checked(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "192.0.2.1", "example.org", "localhost.example.org", "127.1"]
)
def test_any_other_address_needs_a_password_or_a_plain_word(host, tmp_path):
    with pytest.raises(BadValueError, match=r"--auth-file FILE .* or --allow-unauthenticated"):
        Access().checked(host)
    Access(allow_anyone=True).checked(host)
    set_password(tmp_path / "auth", "ann", "correct horse")
    Access(auth_file=tmp_path / "auth").checked(host)


def test_the_app_itself_refuses_such_a_start(tmp_path):
    with pytest.raises(BadValueError, match="needs a password"):
        launch(None, tmp_path, tmp_path, host="0.0.0.0", port=0, block=False)


def test_a_wrong_start_is_one_sentence_and_exit_code_2_before_anything_is_loaded():
    done = typed("--host", "0.0.0.0")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""


def test_a_password_is_kept_as_a_hash_that_only_its_owner_reads(tmp_path):
    file = tmp_path / "new" / "auth"
    set_password(file, "ann", "correct horse")
    set_password(file, "bob", "battery staple")
    set_password(file, "ann", "another horse")
    text = file.read_text()
    assert len(text.splitlines()) == 2 and "horse" not in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["auth"]
    known = Passwords(file)
    assert known.fit_now("ann", "another horse") and known.fit_now("bob", "battery staple")
    with ThreadPoolExecutor(1) as other:  # a loop of its own: playwright has one in this thread
        assert other.submit(lambda: asyncio.run(known.fit("ann", "another horse"))).result() is True
    for name, word in [
        ("ann", "correct horse"),
        ("bob", "another horse"),
        ("eve", ""),
        ("", ""),
        ("ann", ""),
    ]:
        assert not known.fit_now(name, word)
    assert not known.fit_now("ann", "x" * 10_000_000) and not known.fit_now("ann", "\ud800")


def test_a_changed_password_holds_from_the_next_login_on(tmp_path, capsys):
    file = tmp_path / "auth"
    set_password(file, "ann", "correct horse")
    set_password(file, "bob", "battery staple")
    known = Passwords(file)
    set_password(file, "ann", "another horse")
    assert known.fit_now("ann", "another horse") and not known.fit_now("ann", "correct horse")
    remove_password(file, "ann")
    assert not known.fit_now("ann", "another horse") and known.fit_now("bob", "battery staple")
    assert capsys.readouterr().err.splitlines() == ["ddviz: a login as 'ann' was refused"] * 2
    file.write_text("nonsense")
    assert not known.fit_now("bob", "battery staple")
    assert "line 1 is no NAME:SALT:HASH" in capsys.readouterr().err
    file.unlink()
    assert not known.fit_now("bob", "battery staple")
    assert not known.fit_now("bob", "battery staple")  # nor is it an error
    set_password(file, "bob", "battery staple")
    assert known.fit_now("bob", "battery staple")


def test_a_file_that_could_not_be_read_once_is_read_again(tmp_path, monkeypatch):
    file = tmp_path / "auth"
    set_password(file, "ann", "correct horse")
    known = Passwords(file)
    os.utime(file, (1, 1))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", raising(OSError(errno.EMFILE, "Too many open files")))
        assert not known.fit_now("ann", "correct horse")
    assert known.fit_now("ann", "correct horse")


def raising(error):
    def fails(*_, **__):
        raise error

    return fails


def test_a_name_is_taken_out(tmp_path):
    file = tmp_path / "auth"
    set_password(file, "ann", "correct horse")
    link = tmp_path / "link"
    link.symlink_to(file)
    done = ddviz("password", "bob", "--auth-file", link, "--remove")
    assert done.returncode == 2 and "does not name 'bob'" in done.stderr
    done = ddviz("password", "ann", "--auth-file", link, "--remove")
    assert done.returncode == 0 and "is let in no more" in done.stderr
    assert file.read_text() == "" and link.is_symlink()


def test_a_pipe_is_no_file_of_passwords(tmp_path):
    os.mkfifo(tmp_path / "auth")
    with pytest.raises(BadValueError, match="no file of passwords"):
        Passwords(tmp_path / "auth")


def test_two_equal_passwords_have_different_hashes(tmp_path):
    for name in ("ann", "bob"):
        set_password(tmp_path / "auth", name, "correct horse")
    one, other = (tmp_path / "auth").read_text().splitlines()
    assert one.split(":")[1:] != other.split(":")[1:]


def test_a_wrong_name_takes_as_long_as_a_wrong_password(tmp_path):
    set_password(tmp_path / "auth", "ann", "correct horse")
    known = Passwords(tmp_path / "auth")

    def shortest(name: str) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            known.fit_now(name, "wrong")
            times.append(time.perf_counter() - start)
        return min(times)

    assert 0.3 < shortest("eve") / shortest("ann") < 3


@pytest.mark.parametrize("word", ["", "short", "x" * 1025])
def test_a_password_has_8_to_1024_characters(tmp_path, word):
    with pytest.raises(BadValueError, match="8 to 1024"):
        set_password(tmp_path / "auth", "ann", word)
    assert not (tmp_path / "auth").exists()


@pytest.mark.parametrize("text", ["", "\n\n", "ann:secret", "ann:00:11", b"\xff\xfe", "x" * 100_000])
def test_a_file_that_holds_no_passwords_is_refused(tmp_path, text):
    (tmp_path / "auth").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadValueError) as refused:
        Passwords(tmp_path / "auth")
    assert "\n" not in str(refused.value)
