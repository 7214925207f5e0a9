"""Who may use the app: on which address it listens, and whose password is right.

In:  the words of the command line; a file of names and hashed passwords, NAME:SALT:HASH a line.
Out: Access, checked before anything is loaded; `Passwords.fit` for Gradio's login.
Not here: what is asked of every request (guard.py). Loads no Gradio.

Hashes are scrypt's of 16 MiB, so that each guess costs some 50 ms; one is computed at a time.
"""

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ddviz.errors import BadValueError, cant_write

SHORTEST = 8  # characters of a password
LONGEST = 1024
_SCRYPT = {"n": 2**14, "r": 8, "p": 1, "maxmem": 64 << 20}
_NAME = re.compile(r"[\w.@-]{1,64}")
_LINE = re.compile(r"([\w.@-]{1,64}):([0-9a-f]{32}):([0-9a-f]{128})")
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}")


@dataclass(frozen=True, slots=True)
class Access:
    """Who is let in.

    auth_file      names and passwords that are let in; None = whoever reaches the address
    allow_anyone   no password is asked for on an address that others reach
    allowed_hosts  further names under which a browser may know the app: that of a proxy before it, say
    """

    auth_file: Path | None = None
    allow_anyone: bool = False
    allowed_hosts: tuple[str, ...] = ()

    def checked(self, host: str) -> "Access":
        """Itself. Raises BadValueError where others would reach `host` unasked, and for a wrong file."""
        if self.auth_file and self.allow_anyone:
            raise BadValueError("--auth-file and --allow-unauthenticated contradict each other; keep one")
        if not (is_loopback(host) or self.auth_file or self.allow_anyone):
            raise BadValueError(
                f"{host or 'the empty host'} is reached from other machines, so it needs a password:"
                " --auth-file FILE (made with: ddviz password NAME --auth-file FILE), or"
                " --allow-unauthenticated"
            )
        for name in self.allowed_hosts:
            if not _HOST.fullmatch(name):
                raise BadValueError(
                    f"--allowed-host {name:.80} is no name of a host; leave out the scheme and the port"
                )
        if self.auth_file:
            Passwords(self.auth_file)
        return self


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address to listen on. A name other than localhost may be any."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Passwords:
    """Hashes by name, those of a file as it is now: a changed password holds from the next login on."""

    def __init__(self, file: Path) -> None:
        """Raises BadValueError for a file that can't be read, holds none, or a line that is none."""
        self._file, self._stamp = file, _stamp(file)
        self._hashes = _hashes(file)  # name -> salt, hash
        self._nobody = (secrets.token_bytes(16), b"")  # a wrong name takes as long as a wrong password
        self._one_at_a_time = asyncio.Lock()

    def fit_now(self, name: str, password: str) -> bool:
        """Whether it is the name's password. A refusal is said on stderr, for who watches the log."""
        self._read_again()
        salt, digest = self._hashes.get(name, self._nobody)
        is_right = len(password) <= LONGEST and hmac.compare_digest(_hash(password, salt), digest)
        if not is_right:
            print(f"ddviz: a login as {name!r:.80} was refused", file=sys.stderr, flush=True)
        return is_right

    def _read_again(self) -> None:
        stamp = _stamp(self._file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._hashes = _hashes(self._file)
        except BadValueError as error:
            self._hashes, self._stamp = {}, None  # nobody is let in until it can be read
            print(f"ddviz: {error}", file=sys.stderr, flush=True)

    async def fit(self, name: str, password: str) -> bool:
        """As Gradio's login asks; the page is served meanwhile."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(self.fit_now, name, password)


def require_name(name: str) -> None:
    """Raises BadValueError for what can be nobody's."""
    if not _NAME.fullmatch(name):
        raise BadValueError(f"{name!r:.80} is no name; use 1 to 64 letters, digits and . _ @ -")


def set_password(file: Path, name: str, password: str) -> None:
    """Write a name's password into a file, which only its owner may read. Raises DdvizError."""
    require_name(name)
    if not SHORTEST <= len(password) <= LONGEST:
        raise BadValueError(f"a password has {SHORTEST} to {LONGEST} characters, this one {len(password)}")
    kept = [line for line in _lines(file) if _split(line)[0] != name] if file.exists() else []
    salt = secrets.token_bytes(16)
    _write(file, [*kept, f"{name}:{salt.hex()}:{_hash(password, salt).hex()}"])


def remove_password(file: Path, name: str) -> None:
    """Who is named so is let in no more. Raises BadValueError where the file does not name them."""
    lines = _lines(file)
    kept = [line for line in lines if _split(line)[0] != name]
    if len(kept) == len(lines):
        raise BadValueError(f"{file}: does not name {name!r:.80}")
    _write(file, kept)


def _write(file: Path, lines: list[str]) -> None:
    """All of it or nothing, of mode 600; where the path is a link, what it leads to."""
    text = "".join(f"{line}\n" for line in lines)
    try:
        file = Path(os.path.realpath(file))
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=file.parent, prefix=file.name)  # mode 600
        try:
            with open(handle, "w", encoding="utf-8") as out:
                out.write(text)
            with contextlib.suppress(OSError, AttributeError):  # a new file; no root; no such owners
                os.chown(part, file.stat().st_uid, file.stat().st_gid)  # written by root it stays its owner's
            os.replace(part, file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
    except OSError as error:
        raise cant_write(f"{file}: can't write it", error) from None


def _hash(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode("utf-8", "surrogatepass"), salt=salt, dklen=64, **_SCRYPT)  # type: ignore[arg-type]


def _stamp(file: Path) -> tuple[int, ...] | None:
    """Another one where the file is another, or was written."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _hashes(file: Path) -> dict[str, tuple[bytes, bytes]]:
    lines = _lines(file)
    if not lines:
        raise BadValueError(f"{file}: names nobody; add one with: ddviz password NAME --auth-file {file}")
    return {name: (bytes.fromhex(salt), bytes.fromhex(digest)) for name, salt, digest in map(_split, lines)}


def _lines(file: Path) -> list[str]:
    """Those that are not empty, each checked."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise BadValueError(f"{file}: no file of passwords; make one with: ddviz password")
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except OSError as error:
        raise BadValueError(f"{file}: can't read it ({error.strerror})") from None
    except UnicodeDecodeError:
        raise BadValueError(f"{file}: no file of passwords; make one with: ddviz password") from None
    for number, line in enumerate(lines, 1):
        if line and not _LINE.fullmatch(line):
            raise BadValueError(f"{file}: line {number} is no NAME:SALT:HASH; make it with: ddviz password")
    return [line for line in lines if line]


def _split(line: str) -> tuple[str, str, str]:
    name, salt, digest = line.split(":")
    return name, salt, digest
