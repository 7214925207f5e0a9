"""Token bytes, and how they are shown: model text is hostile until it is made visible.

In:  token ids and their raw bytes, as the trace's `tokens` events carry them.
Out: `label` for one token in a tree, `pieces` for running text.
Not here: tokenizers. A trace never needs one.
"""

import codecs
import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache

_NAMED = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_KEPT = {" ": " ", "\n": "\n", "\t": "\t"}
# Drawn as nothing, though Unicode calls them letters, marks or symbols.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_STRAY = re.compile("[\udc80-\udcff]+")  # bytes that are no UTF-8, as "surrogateescape" decodes them
_PART = re.compile("[\udc80-\udcff]+|[^!-~]")  # what may have to be made visible: all but plain ASCII


LONGEST = 256  # bytes of a token that are kept; tokenizers' longest, runs of spaces, have 128


class TokenTable:
    """Raw bytes by token id; of one that is far too long, its beginning."""

    def __init__(self) -> None:
        self._bytes: dict[int, bytes] = {}

    def update(self, new: Mapping[int, bytes]) -> None:
        self._bytes.update((token, _cut(raw)) for token, raw in new.items())

    def __getitem__(self, token: int) -> bytes:
        """The bytes of a token; one that the trace never named reads as its id."""
        raw = self._bytes.get(token)
        return f"⟨{token}⟩".encode() if raw is None else raw

    def __contains__(self, token: int) -> bool:
        return token in self._bytes

    def __len__(self) -> int:
        return len(self._bytes)

    def label(self, token: int) -> str:
        return label(self[token])

    def pieces(self, tokens: Iterable[int]) -> list[str]:
        return pieces(self[token] for token in tokens)


def _cut(raw: bytes) -> bytes:
    return raw if len(raw) <= LONGEST else raw[:LONGEST] + f"⟨… {len(raw)} bytes⟩".encode()


@lru_cache(1 << 16)
def label(raw: bytes) -> str:
    """A token on its own: spaces and line ends as signs, stray bytes as ⟨e2 96⟩, the invisible by number."""
    return _visible(raw.decode("utf-8", "surrogateescape"), _NAMED) or "⟨⟩"


def pieces(tokens: Iterable[bytes]) -> list[str]:
    """Running text, one string per token. A character that tokens share stands whole at the last of them.

    Spaces and line ends stay themselves; what could reorder or hide text is shown by number. Half a character
    at the very end shows its bytes.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    texts = [decoder.decode(raw) for raw in tokens]
    if texts:
        texts[-1] += decoder.decode(b"", final=True)
    return [_visible(text, _KEPT) for text in texts]


def _visible(text: str, named: Mapping[str, str]) -> str:
    return _PART.sub(lambda part: named.get(part[0]) or _sign(part[0]), text)


@lru_cache(1 << 16)
def _sign(part: str) -> str:
    """A character that can be seen, as itself; any other by its number; stray bytes as hex."""
    if _STRAY.match(part):
        return f"⟨{part.encode('utf-8', 'surrogateescape').hex(' ')}⟩"
    # C*: controls, bidi marks, private use and unassigned; Z*: line and paragraph separators, odd spaces
    hidden = unicodedata.category(part)[0] in "CZ" or part in _BLANK
    return f"⟨U+{ord(part):04X}⟩" if hidden else part
