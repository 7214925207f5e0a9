"""The viewer's answers as an exported page keeps them: columns instead of rows, deflate, base 85.

In:  plain JSON, as poll_view and step_view give it.
Out: strings that page_source.js turns back into the same JSON, floats to 9 digits.
Not here: which answers a page holds (html.py), what its levels leave out (levels.py).

Numbers of one kind stand side by side, names once, and what an answer says twice stands once. An object whose
only name is "" is one of these, any other JSON is itself:

    {"": ["rows", 2, {"i": [0, 1], "id": {"": ["all", 7]}}]}    [{"i": 0, "id": 7}, {"i": 1, "id": 7}]
    {"": ["pairs", [[4, 7], [0.5, 0.25]]]}                      [[4, 0.5], [7, 0.25]]
    {"": ["lists", [2, 0, 1], [8, 9, 8]]}                       [[8, 9], [], [8]]
    {"": ["same", 3]}                                           list number 3 of this answer again
    {"": ["near", 3, [1, 5], [7, 9]]}                           number 3 again, but entry 1 is 7, entry 5 is 9
    {"": ["object", {"": 1}]}                                   {"": 1}, which the trace itself named so
    "label": true                                               the label of the object's token `id`
"""

import base64
import json
import zlib
from typing import Any

LEVEL = 6  # of deflate; 9 takes twice as long for a hundredth less
DIGITS = 9  # float32 round-trips
_PLAIN = {int, str, type(None)}  # packed, they are themselves
_FLAT = {*_PLAIN, float}
NEAR, COMPARED = 4, 4  # a list is near one of the last 4 of its length if at most a quarter differs
LONG = 8  # entries of a list that is worth naming by its number


class Packer:
    """Packs answers; `labels` then holds every token's label that was left out of them."""

    def __init__(self) -> None:
        self.labels: dict[int, str] = {}
        self._seen: dict[str, int] = {}
        self._by_length: dict[int, list[tuple[int, list[Any]]]] = {}

    def pack(self, data: Any) -> str:
        return deflate(self.columns(data))

    def columns(self, data: Any) -> Any:
        self._seen, self._by_length = {}, {}
        return self._value(data)

    def _value(self, data: Any) -> Any:
        if isinstance(data, float):
            return float(f"{data:.{DIGITS}g}")
        if isinstance(data, dict):
            plain = {name: self._value(value) for name, value in self._named(data).items()}
            return _form("object", plain) if "" in plain else plain
        return self._list(data) if isinstance(data, list) else data

    def _list(self, data: list[Any]) -> Any:
        first = data[0] if len(data) > 1 else None
        if isinstance(first, dict) and all(isinstance(x, dict) and x.keys() == first.keys() for x in data):
            named = [self._named(row) for row in data]
            return _form(
                "rows", len(data), {name: self._column([row[name] for row in named]) for name in first}
            )
        if isinstance(first, list) and all(isinstance(x, list) for x in data):
            if first and all(len(x) == 2 for x in data):
                return _form("pairs", [self._list([x[side] for x in data]) for side in (0, 1)])
            lengths, flat = [len(x) for x in data], [y for x in data for y in x]
            return _form("lists", self._list(lengths), self._list(flat))
        values = [x if type(x) in _PLAIN else self._value(x) for x in data]
        if len(values) < LONG:
            return values
        text = repr(values)
        if text in self._seen:
            return _form("same", self._seen[text])
        is_flat = all(type(x) in _FLAT for x in values)
        near = self._near(values) if is_flat else None
        if near is None:
            number = self._seen[text] = len(self._seen)
            if is_flat:
                self._by_length.setdefault(len(values), []).append((number, values))
        return values if near is None else near

    def _near(self, values: list[Any]) -> dict[str, Any] | None:
        """The list as a late one of its length with few other entries; None where there is none."""
        most, found = len(values) // NEAR, None
        for number, other in self._by_length.get(len(values), [])[-COMPARED:]:
            places = [i for i, pair in enumerate(zip(values, other, strict=True)) if _differ(*pair)]
            if len(places) <= most:
                most, found = len(places), _form("near", number, places, [values[i] for i in places])
        return found

    def _column(self, values: list[Any]) -> Any:
        first = values[0]
        if not isinstance(first, list | dict) and all(v == first and type(v) is type(first) for v in values):
            return _form("all", self._value(first))
        return self._list(values)

    def _named(self, row: dict[str, Any]) -> dict[str, Any]:
        """An object without the label that its token id implies."""
        token, label = row.get("id"), row.get("label")
        if not isinstance(token, int) or not isinstance(label, str):
            return row
        return {**row, "label": True} if self.labels.setdefault(token, label) == label else row


def _differ(one: Any, other: Any) -> bool:
    """Whether JSON tells two plain values apart: 1 from 1.0, 0.0 from -0.0."""
    if one is other:
        return False
    return one != other or type(one) is not type(other) or (one == 0 and str(one) != str(other))


def _form(kind: str, *content: Any) -> dict[str, Any]:
    return {"": [kind, *content]}


def deflate(data: Any) -> str:
    """JSON, compressed, as letters that may stand in a script element: no `<`."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    raw = zlib.compress(text.encode("utf-8", "replace"), LEVEL)
    return base64.b85encode(raw).decode("ascii").replace("<", ",")


def inflate(text: str) -> Any:
    return json.loads(zlib.decompress(base64.b85decode(text.replace(",", "<"))))


class Unpacker:
    """The inverse of Packer, as page_source.js has it."""

    def __init__(self, labels: dict[int, str]) -> None:
        self._labels = labels
        self._seen: list[list[Any]] = []

    def unpack(self, text: str) -> Any:
        self._seen = []
        return self._value(inflate(text))

    def _value(self, data: Any) -> Any:
        if isinstance(data, list):
            values = [self._value(x) for x in data]
            if len(values) >= LONG:
                self._seen.append(values)
            return values
        if not isinstance(data, dict):
            return data
        if "" not in data:
            return self._labelled({name: self._value(value) for name, value in data.items()})
        kind, *content = data[""]
        return getattr(self, f"_{kind}")(*content)

    def _object(self, named: dict[str, Any]) -> Any:
        return self._labelled({name: self._value(value) for name, value in named.items()})

    def _rows(self, count: int, named: dict[str, Any]) -> Any:
        whole = {name: self._column(column, count) for name, column in named.items()}
        return [self._labelled({name: column[i] for name, column in whole.items()}) for i in range(count)]

    def _column(self, column: Any, count: int) -> Any:
        is_one = isinstance(column, dict) and column[""][0] == "all"
        return [column[""][1]] * count if is_one else self._value(column)

    def _pairs(self, sides: list[Any]) -> Any:
        left, right = (self._value(side) for side in sides)
        return [list(pair) for pair in zip(left, right, strict=True)]

    def _lists(self, lengths: Any, flat: Any) -> Any:
        sizes, values, at = self._value(lengths), self._value(flat), 0
        lists = []
        for size in sizes:
            lists.append(values[at : at + size])
            at += size
        return lists

    def _same(self, number: int) -> Any:
        return self._seen[number]

    def _near(self, number: int, places: list[int], entries: list[Any]) -> Any:
        changes = dict(zip(places, entries, strict=True))
        return [changes.get(i, value) for i, value in enumerate(self._seen[number])]

    def _labelled(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "label": self._labels[row["id"]]} if row.get("label") is True else row
