"""Text of a model is shown so that nothing in it hides, moves or breaks what stands around it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddviz.trace import TokenTable
from ddviz.trace.tokens import label, pieces


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b" the", "·the"),
        (b"\n\n", "⏎⏎"),
        (b"\t", "⇥"),
        (b"\r\n", "␍⏎"),
        (b"", "⟨⟩"),
        ("naïve 日本 🙂".encode(), "naïve·日本·🙂"),
        # half a character, a lone continuation, an encoded surrogate, bytes that never occur
        (b"\xe2\x96", "⟨e2 96⟩"),
        (b"\x96\xe2", "⟨96 e2⟩"),
        (b"a\xffb", "a⟨ff⟩b"),
        (b"\xed\xa0\x80", "⟨ed a0 80⟩"),
        # controls
        (b"\x00\x1b[31m", "⟨U+0000⟩⟨U+001B⟩[31m"),
        ("\u0085\u2028\u2029".encode(), "⟨U+0085⟩⟨U+2028⟩⟨U+2029⟩"),
        # right-to-left override and isolates
        ("\u202egnp\u202c\u2067".encode(), "⟨U+202E⟩gnp⟨U+202C⟩⟨U+2067⟩"),
        # no width, or no ink
        ("a\u200bb\u200d\ufeff\u00ad".encode(), "a⟨U+200B⟩b⟨U+200D⟩⟨U+FEFF⟩⟨U+00AD⟩"),
        ("\u00a0\u3000\u2003".encode(), "⟨U+00A0⟩⟨U+3000⟩⟨U+2003⟩"),
        ("\u3164\u2800\u115f".encode(), "⟨U+3164⟩⟨U+2800⟩⟨U+115F⟩"),
        # private use, unassigned
        ("\ue000\U000e0fff".encode(), "⟨U+E000⟩⟨U+E0FFF⟩"),
        # markup is text
        (b"<b>[red]</b>", "<b>[red]</b>"),
    ],
)
def test_label(raw: bytes, shown: str) -> None:
    assert label(raw) == shown


def test_running_text_keeps_its_spaces_and_lines() -> None:
    assert pieces([b"The", b" cat\n", b"\tsat"]) == ["The", " cat\n", "\tsat"]


def test_an_emoji_over_three_tokens_stands_whole_at_the_last() -> None:
    assert pieces([b"ok \xf0", b"\x9f\x98", b"\x80!"]) == ["ok ", "", "😀!"]


def test_a_character_that_is_never_finished_shows_its_bytes() -> None:
    assert pieces([b"a\xe2", b"b"]) == ["a", "⟨e2⟩b"]
    assert pieces([b"a", b"\xe2\x96"]) == ["a", "⟨e2 96⟩"]
    assert pieces([b"\xf0\x9f", b""]) == ["", "⟨f0 9f⟩"]


def test_running_text_hides_nothing_either() -> None:
    assert pieces(["\u202eabc\u200b".encode(), b"\x07\r"]) == ["⟨U+202E⟩abc⟨U+200B⟩", "⟨U+0007⟩⟨U+000D⟩"]


def test_no_tokens_no_pieces() -> None:
    assert pieces([]) == []


@given(st.lists(st.binary(max_size=6), max_size=8))
def test_any_bytes_give_one_visible_piece_per_token(tokens: list[bytes]) -> None:
    shown = pieces(tokens)
    assert len(shown) == len(tokens)
    for text in [*shown, *map(label, tokens)]:
        assert all(c.isprintable() or c in "\n\t" for c in text)
        text.encode()  # no surrogates


@given(st.text(st.characters(categories=["L", "N", "P"]), max_size=12), st.integers(1, 4))
def test_text_survives_any_cut_into_tokens(text: str, size: int) -> None:
    raw = text.encode()
    tokens = [raw[i : i + size] for i in range(0, len(raw), size)]
    blank = {c for c in text if label(c.encode()).startswith("⟨U+")}
    assert blank or "".join(pieces(tokens)) == text


def test_a_table_shows_an_unknown_id_as_its_number() -> None:
    table = TokenTable()
    table.update({1: b" the", 2: b"\xf0\x9f", 3: b"\x98\x80"})
    assert len(table) == 3
    assert 1 in table
    assert 9 not in table
    assert table[9] == "⟨9⟩".encode()
    assert table.label(9) == "⟨9⟩"
    assert table.label(-1) == "⟨-1⟩"
    assert table.label(1) == "·the"
    assert table.pieces([1, 2, 3, 9]) == [" the", "", "😀", "⟨9⟩"]
