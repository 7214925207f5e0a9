"""One step's tree for other tools: svg, png and dot through graphviz, graphml and json through networkx.

In:  Trace and the place of a step in it.
Out: a networkx graph; its bytes in a format.
Not here: the page that shows a whole trace (html.py), what a node's numbers mean (step.py).

Nodes keep the viewer's three signs of status: colour, outline and text. Token text is hostile: in dot it can
be neither HTML nor an escape nor an entity, in XML no control character is left.
"""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphviz
import networkx as nx

from ddviz.errors import BadValueError, DdvizError, cant_write
from ddviz.trace import Trace
from ddviz.viewer.step import step_view

BONUS = "bonus"
SHOWN = 40  # characters of a label; the whole text is its tooltip
SIGNS = {"root": "◆", "accepted": "✓", "rejected": "✗", "unreached": "", "bonus": "+"}
NODE_FACTS = ("label", "status", "depth", "rank", "score", "draft_prob", "target_prob", "why")


def _style(style: str, line: str, fill: str, text: str) -> dict[str, str]:
    return {"style": style, "color": line, "fillcolor": fill, "fontcolor": text}


STYLES = {  # dot attributes; colours as in viewer.css, light
    "root": _style("filled", "#1a2130", "#1a2130", "#ffffff"),
    "accepted": _style("filled,rounded", "#0b7a5c", "#0b7a5c", "#ffffff"),
    "rejected": _style("filled", "#b0431c", "#fbebe4", "#b0431c") | {"shape": "octagon"},
    "unreached": _style("dashed", "#848fa0", "#ffffff", "#596375"),
    "bonus": _style("filled,rounded,dashed", "#5b49c6", "#efedfc", "#5b49c6"),
}
NO_DOT = (
    "svg and png are drawn by graphviz's dot, which is not on this machine; "
    "install it with: sudo apt-get install graphviz"
)
_DRAWN_WITHIN = 120  # seconds, for a tree of 1,024 nodes
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

FORMATS = ("svg", "png", "dot", "graphml", "json")


def export_graph(trace: Trace, i: int, to: str, path: str | Path) -> Path:
    """Write step `i` in one of FORMATS. Raises as `graph_bytes`, and TraceError where the file can't be."""
    path = Path(path)
    content = graph_bytes(trace, i, to)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise cant_write(f"{path}: can't write the graph there", error) from None
    return path


def graph_bytes(trace: Trace, i: int, to: str) -> bytes:
    """Step `i` in one of FORMATS.

    Raises BadValueError where there is no such step or format, DdvizError where dot is missing or fails.
    """
    if to not in FORMATS:
        raise BadValueError(f"format is {to!r:.40}, must be one of {', '.join(FORMATS)}")
    return _WRITERS[to](step_graph(trace, i))


def step_graph(trace: Trace, i: int) -> nx.DiGraph:
    """Step `i` as a graph: nodes by index and the bonus, edges from parent to child in link order.

    Graph: trace, step, accept_length, kernel, temperature. Node: token and NODE_FACTS. Edge: order, on_path.
    What was not recorded is absent. Raises BadValueError where there is no such step.
    """
    if not 0 <= i < len(trace.steps):
        raise BadValueError(f"step {i} is not there; {trace.name} has {len(trace.steps)} steps, from 0")
    view = step_view(trace, i)
    facts = {"trace": trace.name, "step": view["index"], "accept_length": view["accept_len"]}
    facts |= {"kernel": view["kernel"], "temperature": trace.header.sampling.temperature}
    graph = nx.DiGraph(**facts)
    for node in view["nodes"]:
        status = node["status"] if node["i"] else "root"
        graph.add_node(node["i"], **_known({"token": node["id"], **_some(node), "status": status}))
    path = set(view["path"])
    for node in view["nodes"]:
        for order, child in enumerate(node["children"]):
            graph.add_edge(node["i"], child, order=order, on_path=child in path)
    bonus = view["bonus"]
    if bonus and view["nodes"]:
        known = _known({"token": bonus["id"], **_some(bonus), "status": BONUS, "target_prob": bonus["prob"]})
        graph.add_node(BONUS, **known)
        graph.add_edge(bonus["parent"], BONUS, order=graph.out_degree(bonus["parent"]), on_path=True)
    return graph


def _some(node: dict[str, Any]) -> dict[str, Any]:
    return {name: node.get(name) for name in NODE_FACTS}


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


# ---- dot


def dot_source(graph: nx.DiGraph) -> str:
    """The graph in the dot language: left to right, siblings in link order."""
    facts = graph.graph
    title = f"{facts['trace']} · step {facts['step']} · accept length {facts['accept_length']}"
    dot = graphviz.Digraph(
        graph_attr={
            "rankdir": "LR",
            "ordering": "out",
            "nodesep": "0.12",
            "ranksep": "0.35",
            "label": literal(title),
            "labelloc": "t",
            "fontname": "sans-serif",
            "fontsize": "13",
        },
        node_attr={
            "shape": "box",
            "fontname": "monospace",
            "fontsize": "11",
            "height": "0.3",
            "margin": "0.09,0.04",
        },
        edge_attr={"arrowsize": "0.5", "color": "#a9b3c0"},
    )
    for node, data in graph.nodes(data=True):
        style = STYLES[data["status"]]
        dot.node(f"node {node}", _dot_label(data), tooltip=literal(_tooltip(node, data)), **style)
    for parent, child, data in graph.edges(data=True):
        bold = {"penwidth": "2.6", "color": "#0b7a5c"} if data["on_path"] else {}
        last = {"style": "dotted", "color": "#5b49c6"} if child == BONUS else {}
        dot.edge(f"node {parent}", f"node {child}", **{**bold, **last})
    return str(dot.source)


def _dot_label(data: dict[str, Any]) -> str:
    """Sign and token; under it the status in words, with the target probability."""
    text = data["label"] if len(data["label"]) <= SHOWN else data["label"][: SHOWN - 1] + "…"
    prob = data.get("target_prob")
    below = data["status"] if prob is None else f"{data['status']} {prob:{'.3g' if prob >= 0.001 else '.0e'}}"
    first = literal(f"{SIGNS[data['status']]} {text}".strip())
    return str(graphviz.nohtml(first + r"\n" + below))


def _tooltip(node: int | str, data: dict[str, Any]) -> str:
    return f"{node} {data['label']} {data.get('why', '')}".strip()


def literal(text: str) -> str:
    """Text that dot shows as it is: no escapes (backslash), no entities (&), no HTML (a leading `<`)."""
    text = _for_xml(text).replace("&", "&amp;")
    escaped: str = graphviz.escape(text)
    return escaped


def _drawn(graph: nx.DiGraph, to: str) -> bytes:
    try:
        drawn = subprocess.run(
            ["dot", f"-T{to}", *(["-Gdpi=144"] if to == "png" else [])],
            input=dot_source(graph).encode("utf-8"),
            capture_output=True,
            timeout=_DRAWN_WITHIN,
            check=True,
        )
    except FileNotFoundError:
        raise DdvizError(NO_DOT) from None
    except subprocess.TimeoutExpired:
        raise DdvizError(
            f"dot did not draw {len(graph)} nodes within {_DRAWN_WITHIN} s; choose --to dot, graphml or json"
        ) from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode("utf-8", "replace").strip().splitlines()
        raise DdvizError(
            f"dot could not draw the tree ({reason[-1] if reason else error.returncode})"
        ) from None
    return drawn.stdout


# ---- graphml and json


def _graphml(graph: nx.DiGraph) -> bytes:
    clean = nx.DiGraph(**{name: _for_xml(value) for name, value in graph.graph.items()})
    for node, data in graph.nodes(data=True):
        clean.add_node(node, **{name: _for_xml(value) for name, value in data.items()})
    clean.add_edges_from(graph.edges(data=True))
    return "\n".join(nx.generate_graphml(clean, named_key_ids=True)).encode("utf-8")


def _json(graph: nx.DiGraph) -> bytes:
    data = nx.node_link_data(graph, edges="edges")
    return json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False).encode("utf-8", "replace")


def _for_xml(value: Any) -> Any:
    """A text with what XML can't hold by number, as tokens.py shows it; any other value as it is."""
    if not isinstance(value, str):
        return value
    return _NO_XML.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", value)


_WRITERS: dict[str, Callable[[nx.DiGraph], bytes]] = {
    "svg": lambda graph: _drawn(graph, "svg"),
    "png": lambda graph: _drawn(graph, "png"),
    "dot": lambda graph: dot_source(graph).encode("utf-8"),
    "graphml": _graphml,
    "json": _json,
}
