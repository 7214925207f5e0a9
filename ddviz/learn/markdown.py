"""Markdown as plain JSON, so that no text of a lesson is ever HTML in the page.

In:  Markdown: paragraphs, `##` headings, lists, quotes, code, tables, emphasis, links.
Out: blocks and inlines as below; learn_text.js makes elements of them.
Not here: front matter and sections of a lesson (lesson.py).

    block   ["p", inlines]  ["h", inlines]  ["ul" | "ol", [blocks, ...]]  ["quote", blocks]  ["code", text]
            ["table", [inlines, ...] of the head, [[inlines, ...], ...] of the rows]
    inline  "text"  ["b", inlines]  ["i", inlines]  ["code", text]  ["a", address, inlines]  ["br"]
"""

import re
from collections.abc import Callable
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

Blocks = list[Any]
Refuse = Callable[[int, str], Exception]  # (line from 0, what is wrong) -> the error to raise

# HTML and links of any kind are parsed, so that they can be refused, not shown as if they were text.
_MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")
_MARKDOWN.validateLink = lambda url: True  # type: ignore[method-assign]


def sections(text: str, refuse: Refuse) -> dict[str, Blocks]:
    """Blocks by level-1 heading; what stands before the first under "".

    Raises what `refuse` makes for a heading that comes twice, an image, HTML, or a link that is none.
    """
    found: dict[str, Blocks] = {"": []}
    name = ""
    for node in SyntaxTreeNode(_MARKDOWN.parse(text)).children:
        if node.type == "heading" and node.tag == "h1":
            name = "".join(child.content for child in node.children)
            if name in found:
                raise refuse(_line(node), f"the heading # {name} comes twice")
            found[name] = []
        else:
            found[name].append(_block(node, refuse))
    return found


def links_of(blocks: Any) -> list[str]:
    """Addresses of all links, wherever they stand."""
    if not isinstance(blocks, list):
        return []
    own = [blocks[1]] if len(blocks) == 3 and blocks[0] == "a" else []
    return own + [link for part in blocks for link in links_of(part)]


def plain_text(blocks: Blocks) -> str:
    """The words of blocks, without their marks; a line each."""
    return "\n".join(_block_text(*block) for block in blocks)


def inline_text(inlines: list[Any]) -> str:
    """The words of inlines."""
    return "".join(part if isinstance(part, str) else _INLINE_TEXT[part[0]](*part[1:]) for part in inlines)


_INLINE_TEXT: dict[str, Callable[..., str]] = {
    "b": inline_text,
    "i": inline_text,
    "code": lambda text: text,
    "a": lambda address, inlines: inline_text(inlines),
    "br": lambda: "\n",
}


def _block_text(kind: str, *content: Any) -> str:
    if kind in ("p", "h"):
        return inline_text(content[0])
    if kind in ("ul", "ol"):
        return "\n".join(plain_text(item) for item in content[0])
    if kind == "table":
        return "\n".join(" ".join(map(inline_text, row)) for row in [content[0], *content[1]])
    return content[0] if kind == "code" else plain_text(content[0])


def _block(node: SyntaxTreeNode, refuse: Refuse) -> Any:
    def inner() -> Blocks:
        return [_block(child, refuse) for child in node.children]

    if node.type == "paragraph":
        return ["p", _inlines(node, refuse)]
    if node.type == "heading":
        return ["h", _inlines(node, refuse)]
    if node.type in ("bullet_list", "ordered_list"):
        items = [[_block(part, refuse) for part in item.children] for item in node.children]
        return ["ul" if node.type == "bullet_list" else "ol", items]
    if node.type == "blockquote":
        return ["quote", inner()]
    if node.type in ("fence", "code_block"):
        return ["code", node.content.rstrip("\n")]
    if node.type == "table":
        head, *bodies = node.children
        cells = [
            [_inlines(cell, refuse) for cell in row.children] for part in bodies for row in part.children
        ]
        return ["table", [_inlines(cell, refuse) for cell in head.children[0].children], cells]
    raise refuse(_line(node), f"a lesson can't hold this kind of Markdown ({node.type.replace('_', ' ')})")


def _inlines(node: SyntaxTreeNode, refuse: Refuse) -> list[Any]:
    line = _line(node)
    return [_inline(part, line, refuse) for child in node.children for part in child.children]


def _inline(node: SyntaxTreeNode, line: int, refuse: Refuse) -> Any:
    def inner() -> list[Any]:
        return [_inline(child, line, refuse) for child in node.children]

    if node.type == "text":
        return node.content
    if node.type == "softbreak":
        return " "
    if node.type == "hardbreak":
        return ["br"]
    if node.type == "code_inline":
        return ["code", node.content]
    if node.type in ("strong", "em"):
        return ["b" if node.type == "strong" else "i", inner()]
    if node.type == "link":
        return ["a", _address(str(node.attrs["href"]), line, refuse), inner()]
    raise refuse(line, f"a lesson can't hold this kind of Markdown ({node.type})")


def _address(href: str, line: int, refuse: Refuse) -> str:
    """A web address, or #term of the glossary."""
    if not re.match(r"#|https?://", href, re.IGNORECASE):
        raise refuse(line, f"the link {href!r:.60} must be https://… or #term of the glossary")
    return href


def _line(node: SyntaxTreeNode) -> int:
    return node.map[0] if node.map else 0
