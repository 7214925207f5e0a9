"""Hostile traces: a small, fixed part of what `make fuzz` tries, each crash that was found, and the browser.

No reader may raise anything but one sentence, take 5 s of processor time or grow by 1 GiB.
"""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests import hostile
from tests.app.app_page import AppPage, served_app
from tests.browser import watched_page

FOUND = Path(__file__).parent / "hostile_files"  # each made a reader fail once; *.jsonl: an event a line
QUICK = [
    *("a million nodes", "a batch of a billion", "a huge header"),
    *("a bomb of steps", "a bomb of one frame", "a bomb in the header", "many small blocks"),
]
fixed = settings(
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


@pytest.mark.parametrize("kind", hostile.FILES)
def test_a_hostile_file_is_read_or_refused_in_a_sentence(kind, tmp_path):
    @fixed
    @given(hostile.FILES[kind])
    def tries(data: bytes) -> None:
        (tmp_path / "x.ddviz").write_bytes(data)
        hostile.read_everything(tmp_path / "x.ddviz")

    tries()


def test_a_hostile_source_is_imported_or_refused_in_a_sentence(tmp_path):
    @fixed
    @given(hostile.reference())
    def tries(data: bytes) -> None:
        (tmp_path / "x.json").write_bytes(data)
        hostile.import_everything(tmp_path / "x.json")

    tries()


@pytest.mark.parametrize("name", QUICK)
def test_a_file_made_to_cost_much_costs_little(name, tmp_path):
    (tmp_path / "x.ddviz").write_bytes(hostile.LARGE[name]())
    hostile.read_everything(tmp_path / "x.ddviz")


@pytest.mark.parametrize("file", sorted(FOUND.iterdir()), ids=lambda file: file.name)
def test_what_made_a_reader_fail_once_does_so_no_more(file, tmp_path):
    if file.suffix == ".json":
        (tmp_path / file.name).write_bytes(file.read_bytes())
        hostile.import_everything(tmp_path / file.name)
        return
    lines = file.read_bytes().splitlines()
    path = tmp_path / f"{file.stem}.ddviz"
    path.write_bytes(b"".join(map(hostile.packed, lines)) if file.suffix == ".jsonl" else file.read_bytes())
    hostile.read_everything(path)


# Nothing of a trace is executed ---------------------------------------------------------------------

EVIL = (
    "</script><script>window.ran=1</script><img src=x onerror='window.ran=1'>"
    "${window.ran=1}{{window.ran=1}}\u2028\u202e javascript:window.ran=1"
)
FREE_TEXT = {
    *("name", "version", "device", "target", "draft", "request_id", "created", "text", "reason"),
    *("message", "engine_text"),
}


def _evil(value: object, key: str = "") -> object:
    """A trace's event with a script in every text that its engine may choose."""
    if isinstance(value, dict):
        if key == "bytes":
            return {token: _base64(EVIL) for token in value}
        if key == "times_us":
            return {EVIL: 7.0, **value}
        return {name: _evil(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [EVIL, *value] if key == "notes" else [_evil(part) for part in value]
    return EVIL if isinstance(value, str) and key in FREE_TEXT else value


def _base64(text: str) -> str:
    import base64

    return base64.b64encode(text.encode() + b"\xff\xed\xa0\x80").decode()


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """A folder with a trace whose every text wants to be run, also the name of its file."""
    folder = tmp_path_factory.mktemp("evil")
    header, *rest = hostile.documents()[1]
    header = {**header, "engine": {**header["engine"], "options": {EVIL: EVIL}}, "draft": "x"}
    version = header["version"]
    events = [_evil(event) for event in (header, *rest)]
    events[0]["version"] = version
    events.append({"event": "dropped", "first": 9, "last": 9, "reason": EVIL})
    name = EVIL.replace("/", "∕")[:60]
    (folder / f"{name}.ddviz").write_bytes(b"".join(hostile.packed(event) for event in events))
    return folder


def _look_everywhere(page) -> None:
    """Every stage, view and sheet."""
    page.locator("g[role='treeitem']:visible").first.wait_for()
    for key in [
        *"bcmt",
        ".",
        ".",
        ".",
        ".",
        "?",
        "Escape",
        "e",
        "Escape",
        "f",
        "Escape",
        "ArrowRight",
        "]",
        "[",
    ]:
        page.keyboard.press(key)
        page.wait_for_timeout(30)


def test_the_trace_of_this_test_is_whole(evil):
    (path,) = evil.iterdir()
    trace = hostile.load(path)
    assert trace.damage is None and EVIL in trace.header.notes and len(trace.steps) > 1
    hostile.read_everything(path)


@pytest.mark.browser
def test_no_text_of_a_trace_runs_in_an_exported_page(browser, evil, tmp_path):
    (path,) = evil.iterdir()
    trace = hostile.load(path)
    findings = json.loads(hostile.msgspec.json.encode(hostile.examine_path(path)[path]))
    (tmp_path / "page.html").write_text(hostile.page(trace, findings=findings), "utf-8")
    with watched_page(browser) as watched:
        watched.page.goto((tmp_path / "page.html").as_uri())
        _look_everywhere(watched.page)
        assert watched.page.evaluate("window.ran") is None
        assert watched.page.locator("img").count() == 0


@pytest.mark.browser
def test_no_text_of_a_trace_runs_in_the_app(browser, evil, tmp_path):
    with served_app(None, evil, tmp_path) as url, watched_page(browser) as watched:
        page = AppPage(watched, url)
        page.tab("Replay")
        page.pick("Saved run", EVIL[:8].replace("/", "∕"))
        _look_everywhere(watched.page)
        assert watched.page.evaluate("window.ran") is None
        assert watched.page.locator("img[src='x']").count() == 0
        page.assert_quiet()
