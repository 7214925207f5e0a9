"""The exported page: it fetches nothing, and whatever a token holds stays text."""

import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ddviz.errors import BadValueError, TraceError
from ddviz.trace import load
from ddviz.tree import pack_mask
from ddviz.viewer import assets, export_html
from ddviz.viewer.html import FILES, HERE, STYLES, data_elements, page, page_sizes
from ddviz.viewer.pack import Packer, Unpacker, inflate
from ddviz.viewer.step import mask_rows
from ddviz.viewer.view import step_view
from tests.browser import wait_until, watched_page
from tests.viewer.fixtures import HOSTILE, write_trace
from tests.viewer.test_view import chain, trace_of

SAMPLE = Path(__file__).parents[2] / "traces" / "sglang-64-t1.0.ddviz"
ADDRESS = re.compile(
    r"""(?:src|href|action)\s*=|url\(|@import|\bimport\s*\(|\bfetch\s*\(|XMLHttpRequest|WebSocket"""
)


def elements(html):
    """Name and content of the data elements, as the browser's parser would cut them."""
    return re.findall(r'<script type="text/plain" data-ddviz="(\w+)"[^>]*>(.*?)</script', html, re.S | re.I)


def unpacked(html):
    """The answers in a page: {"poll": [...], "steps": [...]}."""
    found = elements(html)
    labels = {int(token): label for token, label in inflate(dict(found)["labels"]).items()}
    polls = [Unpacker(labels).unpack(text) for name, text in found if name == "poll"]
    steps = [view for name, text in found if name == "steps" for view in Unpacker(labels).unpack(text)]
    return {"poll": polls, "steps": steps}


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
        assert not re.search(r"window\.\w+\s*=[^=]", source), name
    assert assets().js.startswith("const ddviz = (")


def test_no_two_parts_of_the_script_share_a_name():
    """They are joined in one function, where the second would silently replace the first."""
    names = []
    for name in FILES:
        source = (HERE / f"{name}.js").read_text("utf-8")
        names += re.findall(r"^(?:async )?function (\w+)", source, re.M)
        for declared in re.findall(r"^(?:const|let) (\w+|\[[^\]]*\]|\{[^}]*\}) =", source, re.M):
            names += re.findall(r"\w+", declared)
    assert len(names) > 100
    assert sorted(names) == sorted(set(names))


def test_every_file_of_the_viewer_is_joined():
    assert sorted(FILES) == sorted(path.stem for path in HERE.glob("*.js"))
    assert sorted(STYLES) == sorted(path.stem for path in HERE.glob("*.css"))


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
    assert [name for name, _ in elements(html)] == ["poll", "steps", "labels"]
    assert all(re.fullmatch(r"[!-;=-~]*", text) for _, text in elements(html))
    poll, step = unpacked(html)["poll"][0], unpacked(html)["steps"][0]
    assert poll["steps"][0]["emitted"][0]["text"] == trace.tokens.pieces([1])[0] or token[:1] >= b"\x80"
    assert step["emitted"][0]["label"] == trace.tokens.label(1)
    assert html.lower().count("<script") == 5  # three of data, two of the page
    assert "<img" not in html


def test_a_token_that_looks_like_a_place_in_the_template_is_not_filled(tmp_path):
    trace = trace_of(tmp_path / "t.ddviz", chain(1), token_bytes={0: b"A", 1: b"<!--ddviz:js-->", 2: b"c"})
    assert page(trace).count("const ddviz = ") == 1


def test_the_name_of_a_file_is_hostile_too(tmp_path):
    html = page(trace_of(tmp_path / "a<b onload=x>&c.ddviz"))
    assert "<title>a&lt;b onload=x&gt;&amp;c · ddviz</title>" in html


def test_a_long_trace_keeps_all_its_answers(tmp_path):
    trace = trace_of(tmp_path / "t.ddviz", *[chain(1) for _ in range(501)])
    found = unpacked(page(trace))
    assert [(view["since"], len(view["steps"])) for view in found["poll"]] == [(0, 500), (500, 1)]
    assert [view["i"] for view in found["steps"]] == list(range(501))


def test_a_standard_page_holds_each_step_view_as_it_is(traces):
    for trace in traces.values():
        for i, view in enumerate(unpacked(page(trace))["steps"]):
            assert view == nine_digits({**step_view(trace, i), "labels": None})


def nine_digits(data):
    if isinstance(data, float):
        return float(f"{data:.9g}")
    if isinstance(data, dict):
        return {name: nine_digits(value) for name, value in data.items()}
    return [nine_digits(value) for value in data] if isinstance(data, list) else data


def test_a_light_page_keeps_tree_path_probabilities_and_times(traces):
    trace = traces["sampled"]
    for i, light in enumerate(unpacked(page(trace, "light"))["steps"]):
        whole = step_view(trace, i)
        for name in ("path", "accept_len", "stages"):
            assert light[name] == nine_digits(whole[name])
        for node, full in zip(light["nodes"], whole["nodes"], strict=True):
            assert [node[k] for k in ("label", "parent", "status")] == [
                full[k] for k in ("label", "parent", "status")
            ]
            for name in ("draft_prob", "target_prob"):
                assert node[name] == (full[name] and pytest.approx(full[name], rel=1e-3))
            assert node["top"] == [] and node["coin"] is None


def test_a_light_page_says_what_it_lacks(traces):
    notes = unpacked(page(traces["sampled"], "light"))["poll"][0]["header"]["notes"]
    assert "ddviz export --level standard" in notes[-1]


def test_the_size_of_a_page_is_known_before_it_is_made(tmp_path):
    trace = write_trace(tmp_path / "t.ddviz", steps=120)
    sizes = page_sizes(trace)
    assert list(sizes) == ["light", "standard"]
    for level, size in sizes.items():
        assert size == pytest.approx(len(page(trace, level).encode()), rel=0.1)


def test_a_page_may_open_at_a_step(traces):
    assert 'class="ddviz-page" data-step="3"' in page(traces["sampled"], step=3)
    with pytest.raises(BadValueError, match="has 12 steps, from 0"):
        page(traces["sampled"], step=12)
    with pytest.raises(BadValueError, match="must be one of light, standard"):
        page(traces["sampled"], "full")


@pytest.mark.parametrize(
    "data",
    [
        [],
        [{}, {}],
        {"": 1},
        [{"": 1}, {"": 2}],
        [{"a": 1}, {"b": 1}],
        [{"id": 1, "label": "x"}, {"id": 1, "label": "y"}, {"id": True, "label": "z"}],
        [[1, 2], [3, 4], [5, 6]],
        [[], [1], [[2]], [{"a": None}]],
        [[[1, 0.5], [2, 0.25]], [[3, None]]],
        [1, 1.0, True, None, "1"] * 2,
        [[1, 2, 3, 4, 5, 6, 7, 8], "x", {"same": [1, 2, 3, 4, 5, 6, 7, 8]}],
        [{"all": 1, "a": {"": ["all", 1]}}, {"all": 1, "a": {"": ["all", 1]}}],
        [[*range(20)], {"near": [*range(18), 1.5, None]}, {"near": [*range(19), "y"]}, {"far": [7] * 20}],
        [[0.0, 1, *range(8)], "x", {"near": [-0.0, 1.0, *range(8)]}],
        [[[1] * 8, *range(20)], "x", {"near": [[2] * 8, *range(20)]}, {"again": [2] * 8}],
    ],
)
def test_what_is_packed_is_the_same_unpacked(data):
    packer = Packer()
    text = packer.pack(data)
    assert repr(Unpacker(packer.labels).unpack(text)) == repr(data)


def test_a_list_near_another_is_held_as_what_differs():
    packed = Packer().columns({"raw": [*range(20)], "filtered": [*range(19), 0.5], "far": [3] * 20})
    assert packed["filtered"] == {"": ["near", 0, [19], [0.5]]}
    assert packed["far"] == [3] * 20


def test_the_browser_unpacks_lists_that_are_near_each_other(browser, tmp_path):
    trace = load(SAMPLE)
    with watched_page(browser) as watched:
        watched.page.goto(export_html(trace, tmp_path / "near.html").as_uri())
        wait_until(watched.page, "ddviz.view.state().drawMs !== null")
        for i in (0, 9):
            view = watched.page.evaluate(f"ddviz.pageSource(document).step({i})")
            assert view == nine_digits({**step_view(trace, i), "labels": view["labels"]})


def test_a_page_of_a_run_on_sglang_is_little_larger_than_its_trace():
    """Its viewer left out; the samples are short, so that labels weigh more than in a long run."""
    trace = load(SAMPLE)
    data = sum(len(element) for part in data_elements(trace) for element in part)
    assert data < 1.4 * trace.size


def test_the_mask_of_a_wide_tree_is_written_faster_than_a_string_per_entry():
    mask = np.tri(1025, dtype=np.bool_)
    step = SimpleNamespace(mask=pack_mask(mask), batch=None, tree=SimpleNamespace(tokens=range(1025)))

    def seconds(rows):
        began = time.process_time()
        written = rows()
        return written, time.process_time() - began

    slow, long = seconds(lambda: ["".join(row) for row in mask.astype(np.uint8).astype(str)])
    fast, short = min((seconds(lambda: mask_rows(step)) for _ in range(3)), key=lambda found: found[1])
    assert fast == slow and short < long / 5


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
    ("muted", "current"),
    ("muted", "line"),
    ("ink", "line"),
    ("accepted", "current"),
    ("rejected", "current"),
    ("warn", "current"),
    ("accepted", "tint"),
    ("rejected", "tint"),
    ("bonus", "tint"),
    ("warn", "tint"),
    ("warn", "panel"),
    ("warn", "warn-soft"),
    ("live", "panel"),
    ("wrong", "panel"),
    ("wrong", "wrong-soft"),
    ("ink", "lit"),
    ("muted", "lit"),
    ("accepted", "lit"),
    ("rejected", "lit"),
    ("focus", "panel"),
]

SEEN_ON = [  # lines and shapes, and the contrast they need
    ("faint", "panel", 3),  # borders of unreached nodes
    ("faint", "soft", 2.9),
    ("focus", "panel", 3),
    ("accepted", "panel", 3),
    ("rejected", "panel", 3),
    ("bonus", "panel", 3),
    ("edge", "panel", 2),  # that of a node says the same as its place
]


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [r"\.ddviz \{", r"\.ddviz\.ddviz-dark \{"])
def test_every_text_colour_reaches_contrast_aa_and_every_line_is_seen(scheme):
    block = re.search(scheme + r"(.*?)\}", assets().css, re.S)[1]
    colours = dict(re.findall(r"--ddviz-([\w-]+): (#[0-9a-f]{6});", block))
    for front, ground, least in [(*pair, 4.5) for pair in READ_ON] + SEEN_ON:
        lighter, darker = sorted((luminance(colours[front]), luminance(colours[ground])), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= least, f"{front} on {ground}"
