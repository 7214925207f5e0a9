"""The exported page: it fetches nothing, and whatever a token holds stays text."""

import json
import re

import pytest

from ddviz.errors import TraceError
from ddviz.viewer import assets, export_html
from ddviz.viewer.html import FILES, HERE, page
from tests.viewer.fixtures import HOSTILE
from tests.viewer.test_view import chain, trace_of

ADDRESS = re.compile(
    r"""(?:src|href|action)\s*=|url\(|@import|\bimport\s*\(|\bfetch\s*\(|XMLHttpRequest|WebSocket"""
)


def blocks(html):
    """Contents of the data elements, as the browser's parser would cut them."""
    return re.findall(r'<script type="application/json" data-ddviz="(\w+)">(.*?)</script', html, re.S | re.I)


def test_the_scripts_and_styles_reach_for_nothing():
    js, css = assets()
    own = js.replace("http://www.w3.org/2000/svg", "").replace("https://d3js.org/d3-hierarchy/", "")
    assert "http" not in own
    assert not ADDRESS.search(own)
    assert not ADDRESS.search(css)


def test_the_scripts_turn_no_string_into_markup_or_code():
    for name in FILES:
        source = (HERE / f"{name}.js").read_text("utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", source
        ), name


def test_the_scripts_leave_one_global_and_no_ids():
    for name in FILES:
        source = (HERE / f"{name}.js").read_text("utf-8")
        assert not re.search(r"\.id\s*=[^=]|setAttribute\(.id|getElementById", source), name
        for written in re.findall(r"window\.(\w+)\s*=[^=]", source):
            assert written == "ddviz"


def test_the_page_allows_its_own_scripts_only(pages):
    html = pages["sampled"].read_text("utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert "default-src &#x27;none&#x27;" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    "token", [*HOSTILE, b"</SCRIPT", b"<!--<script>", "\u2029".encode(), b"\x00\x1b[31m"]
)
def test_a_hostile_token_cannot_leave_its_data_element(tmp_path, token):
    trace = trace_of(tmp_path / "t.ddviz", chain(1), token_bytes={0: b"A", 1: token, 2: b"c"}, finish="stop")
    html = page(trace)
    found = blocks(html)
    assert [name for name, _ in found] == ["poll", "step"]
    poll, step = (json.loads(text) for _, text in found)
    assert all("<" not in text and "\u2028" not in text and "\u2029" not in text for _, text in found)
    assert poll["steps"][0]["emitted"][0]["text"] == trace.tokens.pieces([1])[0] or token[:1] >= b"\x80"
    assert step["emitted"][0]["label"] == trace.tokens.label(1)
    assert html.lower().count("<script") == 4  # two of data, two of the page
    assert "<img" not in html


def test_a_token_that_looks_like_a_place_in_the_template_is_not_filled(tmp_path):
    trace = trace_of(tmp_path / "t.ddviz", chain(1), token_bytes={0: b"A", 1: b"<!--ddviz:js-->", 2: b"c"})
    assert page(trace).count("window.ddviz = ") == 1


def test_the_name_of_a_file_is_hostile_too(tmp_path):
    html = page(trace_of(tmp_path / "a<b onload=x>&c.ddviz"))
    assert "<title>a&lt;b onload=x&gt;&amp;c · ddviz</title>" in html


def test_a_long_trace_keeps_all_its_answers(tmp_path):
    trace = trace_of(tmp_path / "t.ddviz", *[chain(1) for _ in range(501)])
    polls = [json.loads(text) for name, text in blocks(page(trace)) if name == "poll"]
    assert [(view["since"], len(view["steps"])) for view in polls] == [(0, 500), (500, 1)]


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path, traces):
    with pytest.raises(TraceError, match="can't write the page there"):
        export_html(traces["sampled"], tmp_path / "missing" / "x.html")


# Colours ---------------------------------------------------------------------------------------------

READ_ON = [
    ("ink", "panel"),
    ("ink", "tint"),
    ("ink", "current"),
    ("muted", "panel"),
    ("muted", "soft"),
    ("muted", "tint"),
    ("panel", "ink"),
    ("accepted", "panel"),
    ("accepted", "accepted-soft"),
    ("accepted-ink", "accepted"),
    ("rejected", "panel"),
    ("rejected", "rejected-soft"),
    ("bonus", "panel"),
    ("bonus", "bonus-soft"),
    ("warn", "warn-soft"),
    ("live", "panel"),
    ("focus", "panel"),
]


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [r"\.ddviz \{", r"\.ddviz\.ddviz-dark \{"])
def test_every_text_colour_reaches_contrast_aa(scheme):
    block = re.search(scheme + r"(.*?)\}", assets().css, re.S)[1]
    colours = dict(re.findall(r"--ddviz-([\w-]+): (#[0-9a-f]{6});", block))
    for text, ground in READ_ON:
        lighter, darker = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, f"{text} on {ground}"
