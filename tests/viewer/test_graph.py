"""One step for other tools: what the graph holds, and that no token text gets out of its quotes."""

import json
import re
import shutil
import xml.etree.ElementTree as ET

import networkx as nx
import pytest

from ddviz.errors import BadValueError, DdvizError, TraceError
from ddviz.viewer import graph as graphs
from ddviz.viewer.graph import FORMATS, dot_source, export_graph, graph_bytes, literal, step_graph
from ddviz.viewer.step import step_view
from tests.viewer.fixtures import HOSTILE
from tests.viewer.test_view import small_step, trace_of

needs_dot = pytest.mark.skipif(
    not shutil.which("dot"), reason="no dot; install it with: apt-get install graphviz"
)
NASTY = [
    *HOSTILE,
    b'"',
    b'\\"',
    b"\\",
    b"\\\\",
    b'"]; evil [label="x',
    b"\\N\\G\\n\\l",
    b"<b>bold</b>",
    b"<<table/>>",
    b"&amp; &#65; &lt;",
    b"{a|b}",
    b"]]>",
    b"\x00\x01\x0b\x1b",
    "\ufffe\uffff".encode(),
    b"",
    b"node",
]


def trace_with(tmp_path, token, name="t"):
    names = {i: token if i else b"A" for i in range(6)}
    return trace_of(tmp_path / f"{name}.ddviz", small_step(), token_bytes=names, finish="stop")


def test_the_graph_is_the_tree_with_the_bonus_at_its_end(tmp_path):
    #        0 root        1 rejected, 2 accepted
    #       / \
    #      1   2          3 and 4 rejected; the bonus hangs below 2
    #         / \
    #        3   4
    trace = trace_of(tmp_path / "t.ddviz", small_step())
    graph = step_graph(trace, 0)
    assert list(graph.edges) == [(0, 1), (0, 2), (2, 3), (2, 4), (2, "bonus")]
    assert nx.get_node_attributes(graph, "status") == {
        0: "root",
        1: "rejected",
        2: "accepted",
        3: "rejected",
        4: "rejected",
        "bonus": "bonus",
    }
    assert [edge for edge, on_path in nx.get_edge_attributes(graph, "on_path").items() if on_path] == [
        (0, 2),
        (2, "bonus"),
    ]
    assert graph.graph["accept_length"] == 2
    assert "target_prob" not in graph.nodes[1]  # was not recorded


def test_json_reads_back_as_the_same_graph(traces):
    data = json.loads(graph_bytes(traces["sampled"], 3, "json"))
    back = nx.node_link_graph(data, edges="edges")
    assert nx.utils.graphs_equal(back, step_graph(traces["sampled"], 3))


@pytest.mark.parametrize("token", NASTY)
def test_graphml_keeps_any_token(tmp_path, token):
    trace = trace_with(tmp_path, token)
    back = nx.parse_graphml(graph_bytes(trace, 0, "graphml").decode())
    assert back.nodes["1"]["label"] == trace.tokens.label(1)
    assert back.nodes["1"]["status"] == "rejected"


def test_graphml_shows_by_number_what_xml_cannot_hold(tmp_path):
    trace = trace_with(tmp_path, b"x", name="a\x0bb")
    back = nx.parse_graphml(graph_bytes(trace, 0, "graphml").decode())
    assert back.graph["trace"] == "a⟨U+000B⟩b"


@needs_dot
@pytest.mark.parametrize("token", NASTY)
def test_dot_shows_any_token_as_it_is(tmp_path, token):
    trace = trace_with(tmp_path, token)
    svg = ET.fromstring(graph_bytes(trace, 0, "svg"))
    groups = svg.findall(".//{*}g[@class='node']")
    assert len(groups) == 6
    shown = {g.find("{*}title").text: [text.text for text in g.findall(".//{*}text")] for g in groups}
    label = trace.tokens.label(1)
    short = label if len(label) <= 40 else label[:39] + "…"
    assert [line.replace("\xa0", " ") for line in shown["node 1"]] == [f"✗ {short}", "rejected"]


@needs_dot
def test_the_name_of_a_trace_cannot_leave_the_title(tmp_path):
    trace = trace_with(tmp_path, b"x", name='a"]<b>\\N&amp;')
    svg = ET.fromstring(graph_bytes(trace, 0, "svg"))
    title = [text.text for text in svg.findall(".//{*}text") if "accept length" in text.text]
    assert title == ['a"]<b>\\N&amp; · step 0 · accept length 2']


@pytest.mark.parametrize("text", ["<b>x</b>", '"', "\\", "a\\", "&lt;", "\x07"])
def test_a_literal_is_one_quoted_string(text):
    from graphviz.quoting import quote

    quoted = quote(literal(text))
    assert re.fullmatch(r'"(?:[^"\\&\x00-\x1f]|\\["\\]|&amp;)*"|\w+', quoted)


def test_status_is_colour_outline_and_text(traces):
    source = dot_source(step_graph(traces["sampled"], 0))
    looks = {}
    for status in ("root", "accepted", "rejected", "unreached", "bonus"):
        line = next(line for line in source.splitlines() if rf"\n{status}" in line)
        looks[status] = (
            re.search(r'color="(#\w+)"', line)[1],
            "octagon" in line,
            re.search("style=.*", line)[0],
        )
    assert len({look[0] for look in looks.values()}) == 5  # colours
    assert len({look[1:] for look in looks.values()}) == 5  # outlines


@needs_dot
def test_every_format_is_written(traces, tmp_path):
    begins = {"svg": b"<?xml", "png": b"\x89PNG", "dot": b"digraph", "graphml": b"<graphml", "json": b"{"}
    for to in FORMATS:
        path = export_graph(traces["hostile"], 2, to, tmp_path / f"x.{to}")
        assert path.read_bytes().startswith(begins[to])


@needs_dot
def test_a_tree_of_a_thousand_nodes_is_drawn(traces):
    svg = graph_bytes(traces["large"], 0, "svg")
    assert svg.count(b'class="node"') == len(step_view(traces["large"], 0)["nodes"]) + 1


def test_without_dot_one_sentence_says_how_to_get_it(traces, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(DdvizError, match="install it with: sudo apt-get install graphviz"):
        graph_bytes(traces["sampled"], 0, "svg")
    assert graph_bytes(traces["sampled"], 0, "dot").startswith(b"digraph")


def test_what_is_not_there_is_refused_as_misuse(traces, tmp_path):
    with pytest.raises(BadValueError, match="has 12 steps, from 0"):
        graph_bytes(traces["sampled"], 12, "dot")
    with pytest.raises(BadValueError, match="must be one of svg, png"):
        graph_bytes(traces["sampled"], 0, "gif")
    with pytest.raises(TraceError, match="can't write the graph there"):
        export_graph(traces["sampled"], 0, "json", tmp_path / "missing" / "x.json")


def test_every_format_has_a_writer():
    assert tuple(graphs._WRITERS) == FORMATS
