"""Token bytes, and how they are shown: model text is hostile until it is made visible.

In:  token ids and their raw bytes, as the trace's `tokens` events carry them.
Out: `label` for one token in a tree, `pieces` for running text.
Not here: tokenizers. A trace never needs one.
"""

import codecs
import unicodedata
from collections.abc import Iterable, Mapping

_NAMED = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}


class TokenTable:
    """Raw bytes by token id."""

    def __init__(self) -> None:
        self._bytes: dict[int, bytes] = {}

    def update(self, new: Mapping[int, bytes]) -> None:
        self._bytes.update(new)

    def __getitem__(self, token: int) -> bytes:
        """The bytes of a token; one that the trace never named reads as its id."""
        return self._bytes.get(token, f"⟨{token}⟩".encode())

    def __contains__(self, token: int) -> bool:
        return token in self._bytes

    def __len__(self) -> int:
        return len(self._bytes)

    def label(self, token: int) -> str:
        return label(self[token])

    def pieces(self, tokens: Iterable[int]) -> list[str]:
        return pieces(self[token] for token in tokens)


def label(raw: bytes) -> str:
    """A token on its own: spaces and line ends as signs, stray bytes as ⟨e2 96⟩, invisible characters by number."""
    return "".join(_visible(part, _NAMED) for part in _decode_parts(raw)) or "⟨⟩"


def pieces(tokens: Iterable[bytes]) -> list[str]:
    """Running text, one string per token. A character that several tokens share stands whole at the last of them.

    Spaces and line ends stay themselves; what could reorder or hide text is shown by number.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    return ["".join(_visible(c, {}) for c in decoder.decode(raw)) for raw in tokens]


def _decode_parts(raw: bytes) -> list[str]:
    """Characters, and runs of bytes that are none as ⟨hex⟩."""
    parts: list[str] = []
    while raw:
        try:
            parts.extend(raw.decode())
            break
        except UnicodeDecodeError as error:
            parts.extend(raw[: error.start].decode())
            parts.append(f"⟨{raw[error.start : error.end].hex(' ')}⟩")
            raw = raw[error.end :]
    return parts


def _visible(part: str, named: Mapping[str, str]) -> str:
    if part in named:
        return named[part]
    if len(part) > 1 or part in "\n\t":
        return part
    # C*: controls, bidi marks, private use and unassigned; Z*: line and paragraph separators, odd spaces
    category = unicodedata.category(part)
    hidden = category[0] == "C" or category in ("Zl", "Zp") or (category == "Zs" and part != " ")
    return f"⟨U+{ord(part):04X}⟩" if hidden else part
