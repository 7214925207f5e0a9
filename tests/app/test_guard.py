"""Whatever is sent to the app over the network: a plain answer or one sentence, never a failure or a wait."""

import contextlib
import errno
import http.client
import json
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import gradio.route_utils
import httpx
import pytest

from ddviz.app import guard
from ddviz.app.access import Access, set_password
from ddviz.app.main import launch
from tests.app.app_page import AppPage, served_app
from tests.app.conftest import free_port, wait_until
from tests.app.fake_engine import FakeEngine
from tests.browser import watched_page
from tests.viewer.fixtures import write_trace

EVIL = "<img src=x onerror=\"document.title='pwned'\"></script><script>document.title=`pwned`</script>"
PATHS = ["../../etc/passwd", "/etc/passwd", "\0", "a" * 100_000]
NUMBERS = [-1, 2**31, 2**53, 2**63, 10**300, 1e308, 0.5]
VALUES = [None, True, False, "", "7", EVIL, "\u2028", *PATHS, *NUMBERS, [], {}, [[]], {"path": "/etc/passwd"}]


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    samples, runs = tmp_path_factory.mktemp("samples"), tmp_path_factory.mktemp("runs")
    write_trace(samples / "story.ddviz", steps=6)
    shutil.copy(samples / "story.ddviz", runs / f"{EVIL.replace('/', '∕')}.ddviz")
    engine = FakeEngine(hostile=True)
    with served_app(engine, runs, samples) as url:
        yield url.rstrip("/")
    engine.close()


@pytest.fixture(scope="module")
def client(app):
    with httpx.Client(base_url=app, trust_env=False, timeout=20) as client:
        yield client


@pytest.fixture(scope="module")
def config(client):
    return client.get("/config").json()


def raw(app: str, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, bytes]:
    """A request with just these headers, and its answer."""
    connection = http.client.HTTPConnection(urlsplit(app).netloc, timeout=20)
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        if body:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        answer = connection.getresponse()
        return answer.status, answer.read()


def is_sentence(answer: httpx.Response) -> bool:
    """A refusal that says something, and nothing of how the app is made."""
    said = answer.json()
    text = said.get("error") or said.get("detail")
    return isinstance(text, str) and 5 < len(text) < 600 and "Traceback" not in text and "\n" not in text


def call(client, function: int, data: object, **more: object) -> httpx.Response:
    asked = {"fn_index": function, "data": data, "event_data": None, "trigger_id": None, "session_hash": "t"}
    return client.post("/gradio_api/run/predict", json={**asked, **more})


def ask(client, component: int, name: str, data: object) -> httpx.Response:
    asked = {"component_id": component, "fn_name": name, "data": data, "session_hash": "t"}
    return client.post("/gradio_api/component_server/", json=asked)


def functions(config) -> list[tuple[int, str]]:
    """Every server function once: a component that has it, and its name."""
    found = [
        (name, component["id"])
        for component in config["components"]
        for name in component["props"].get("server_fns") or ()
    ]
    return [(component, name) for name, component in dict(found).items()]


def component_of(config, function: str) -> int:
    return next(component for component, name in functions(config) if name == function)


# Who asks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{}", "localhost:{}", "LOCALHOST", "localhost.", "[::1]:{}", "192.0.2.7"]
)
def test_a_known_host_is_answered(app, host):
    assert raw(app, "GET", "/", {"Host": host.format(urlsplit(app).port)})[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil@localhost", "a b", "", "[::1"],
)
def test_a_name_that_leads_here_by_a_trick_is_not(app, host):
    """DNS rebinding: the browser believes that this machine is the evil site's, and says so."""
    for method, path in [("GET", "/"), ("GET", "/config"), ("POST", "/gradio_api/run/predict")]:
        status, body = raw(app, method, path, {"Host": host})
        assert status in (400, 403) and b"secret" not in body
    assert raw(app, "GET", "/", {})[0] in (400, 403)


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1.evil.example", "file://", "x"],
)
def test_a_page_of_another_site_may_not_ask(app, origin):
    host = urlsplit(app).netloc
    body = json.dumps({"fn_index": 0, "data": [], "session_hash": "t"}).encode()
    for path in ("/gradio_api/run/predict", "/gradio_api/component_server", "/gradio_api/upload", "/login"):
        for kind in ("application/json", "text/plain"):  # the second goes without asking first
            status, said = raw(
                app, "POST", path, {"Host": host, "Origin": origin, "Content-Type": kind}, body
            )
            assert status == 403 and b"may not use this app" in said
    assert raw(app, "GET", "/config", {"Host": host, "Origin": origin})[0] == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_browser_that_says_another_site_asks_is_believed(app, site):
    headers = {"Host": urlsplit(app).netloc, "Sec-Fetch-Site": site}
    assert raw(app, "GET", "/config", headers)[0] == 403
    assert raw(app, "GET", "/", headers)[0] == 200  # a link leads here


def test_the_own_page_may_ask(app, config):
    netloc = urlsplit(app).netloc
    component = component_of(config, "status")
    question = {"component_id": component, "fn_name": "status", "data": {}, "session_hash": "t"}
    body = json.dumps(question).encode()
    headers = {"Host": netloc, "Origin": f"http://{netloc}", "Content-Type": "application/json"}
    status, said = raw(app, "POST", "/gradio_api/component_server", headers, body)
    assert status == 200 and json.loads(said)["state"] == "ready"


def test_a_proxy_with_a_name_of_its_own_is_let_in_where_it_was_named(tmp_path):
    access = Access(allowed_hosts=("Lab.example.org",))
    page, url = launch(None, tmp_path, tmp_path, port=free_port(), block=False, access=access)
    try:
        for headers in (
            {"Host": "lab.example.org"},
            {"Host": "lab.example.org", "Origin": "https://lab.example.org"},
            {"Host": urlsplit(url).netloc, "Origin": "https://lab.example.org"},  # it writes the host anew
        ):
            assert raw(url, "GET", "/config", headers)[0] == 200
        assert raw(url, "GET", "/config", {"Host": "example.org"})[0] == 403
    finally:
        page.close()


# What is asked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/gradio_api/file=/etc/passwd"),
        ("GET", "/gradio_api/file=http://127.0.0.1:1/"),
        ("GET", "/gradio_api/proxy=http://127.0.0.1:1/"),
        ("GET", "/gradio_api/info"),
        ("GET", "/gradio_api/queue/data?session_hash=t"),
        ("POST", "/gradio_api/queue/join"),
        ("POST", "/gradio_api/call/begin"),
        ("POST", "/gradio_api/vibe-edit"),
        ("POST", "/gradio_api/process_recording"),
        ("GET", "/gradio_api/custom_component/x/client/component/y"),
        ("GET", "/gradio_api/deep_link?session_hash=t"),
        ("GET", "/monitoring"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("PUT", "/"),
        ("DELETE", "/config"),
        ("GET", "/static/../../../etc/passwd"),
        ("GET", "/assets/%2e%2e/%2e%2e/%2e%2e/etc/passwd"),
        ("GET", "/assets//etc/passwd"),
        ("GET", "/" + "a" * 5000),
    ],
)
def test_what_the_page_has_no_use_for_is_not_there(app, method, path):
    status, body = raw(app, method, path, {"Host": urlsplit(app).netloc})
    assert status in (403, 404) and b"root:" not in body


def test_every_server_function_answers_anything_with_data_or_a_sentence(client, config):
    found = functions(config)
    assert {name for _, name in found} >= {
        "poll",
        "step",
        "batch",
        "findings",
        "sizes",
        "exported",
        "compare",
    }
    fields = ("trace", "index", "since", "step", "to", "level", "action", "name", "a", "b", "log", "with")
    for component, name in found:
        for value in VALUES:
            for data in (value, dict.fromkeys(fields, value)):
                answer = ask(client, component, name, data)
                assert answer.status_code in (200, 400, 413), (name, data, answer.text)
                said = answer.json()
                assert isinstance(said, dict)
                if "error" in said and said["error"] is not None:
                    assert is_sentence(answer), (name, said)


def test_with_a_trace_that_is_open_every_other_field_may_be_anything(client, config):
    trace = sample_id(client, config)
    for component, name in functions(config):
        if name in ("control", "status", "course", "lesson", "requests"):
            continue
        for field in ("index", "since", "step", "to", "level", "b"):
            for value in VALUES:
                data = {
                    "trace": trace,
                    "a": trace,
                    "b": trace,
                    "index": 0,
                    "since": 0,
                    "step": 0,
                    "to": "json",
                }
                answer = ask(client, component, name, {**data, field: value})
                assert answer.status_code in (200, 400), (name, field, value, answer.text)
                assert answer.json().get("error") is None or is_sentence(answer)


def sample_id(client, config) -> str:
    for dependency in config["dependencies"]:
        if dependency["targets"][0][1] == "load" and len(dependency["outputs"]) == 2:
            lists = call(client, dependency["id"], []).json()["data"]
            return lists[0]["choices"][0][1]
    raise AssertionError("no list of samples")


def test_every_event_answers_anything_with_data_or_a_sentence(client, config, capfd):
    for dependency in config["dependencies"]:
        count = len(dependency["inputs"])
        for value in VALUES:
            answer = call(client, dependency["id"], [value] * count)
            assert answer.status_code in (200, 400), (dependency["id"], value, answer.text)
            assert answer.status_code == 200 or is_sentence(answer)
        for data in (None, {}, "x", [None] * (count + 1), [None] * 5000):
            assert call(client, dependency["id"], data).status_code == 400 or data == [None] * count
    assert "Traceback" not in "".join(capfd.readouterr())


def test_each_field_of_a_run_is_looked_at(client, config):
    """One field wrong at a time, so that each check has its turn."""
    begin = next(d for d in config["dependencies"] if d["targets"][0][1] == "generate")
    right = ["hello", True, "ddtree", 16, 4, 0, 0, 1, 2, ""]
    for place in range(len(right)):
        for value in VALUES:
            answer = call(client, begin["id"], [*right[:place], value, *right[place + 1 :]])
            assert answer.status_code in (200, 400), (place, value, answer.text)


@pytest.mark.parametrize("field", ["fn_index", "session_hash", "trigger_id", "event_data"])
def test_every_other_part_of_a_call_may_be_anything(client, config, field):
    component = component_of(config, "status")
    for value in VALUES:
        answer = call(client, 3, [], **{field: value})
        assert answer.status_code in (200, 400), (field, value, answer.text)
        assert answer.status_code == 200 or is_sentence(answer)
        question = {"component_id": component, "fn_name": "status", "data": {}, "session_hash": "t"}
        for key in question:
            answer = client.post("/gradio_api/component_server", json={**question, key: value})
            assert answer.status_code in (200, 400), (key, value, answer.text)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"[" * 1_000_000,
        b'{"fn_index":' + b"9" * 5000 + b"}",
        b'{"data":NaN}',
        b'{"fn_index":1e999}',
    ],
    ids=lambda body: repr(body[:12]),
)
def test_a_body_that_is_no_request_is_one_sentence(client, body):
    for path in ("/gradio_api/run/predict", "/gradio_api/component_server"):
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400 and is_sentence(answer)


def test_a_form_is_no_request(client):
    for path in ("/gradio_api/run/predict", "/gradio_api/component_server"):
        assert client.post(path, data={"fn_name": "status"}, files={"data": b"x"}).status_code == 415


def test_a_request_is_bounded(client):
    answer = client.post("/gradio_api/run/predict", content=bytes(guard.MAX_BODY + 1))
    assert answer.status_code == 413 and "4 MiB" in answer.json()["error"]

    def drip():
        for _ in range(5):
            yield bytes(1 << 20)  # its length is not told before

    headers = {"Content-Type": "application/json"}
    answer = client.post("/gradio_api/run/predict", content=drip(), headers=headers)
    assert answer.status_code == 413


# Files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../../x.ddviz",
        "/etc/x.ddviz",
        "..",
        ".",
        "",
        "\0x",
        "a" * 5000,
        "..\\x.ddviz",
        "C:\\x",
        EVIL,
        "\u202ex",
    ],
)
def test_the_name_of_an_uploaded_file_never_leads_out_of_the_upload_folder(client, name, tmp_path):
    from gradio.utils import get_upload_folder

    folder = Path(get_upload_folder()).resolve()
    answer = client.post("/gradio_api/upload", files={"files": (name, b"no trace")})
    assert answer.status_code in (200, 400, 413)
    if answer.status_code == 200:
        for path in answer.json():
            kept = Path(path).resolve()
            assert kept.is_file() and len(kept.relative_to(folder).parts) == 2


def test_only_what_was_uploaded_here_can_be_opened(client, config, tmp_path):
    (drop,) = [d["id"] for d in config["dependencies"] if d["targets"][0][1] == "upload"]
    outside = write_trace(tmp_path / "secret.ddviz", steps=3).path
    for path in [str(outside), *PATHS, None, 7]:
        answer = call(client, drop, [{"path": path, "meta": {"_type": "gradio.FileData"}}])
        assert answer.status_code == 400 and "uploaded first" in answer.json()["error"]
    (path,) = client.post("/gradio_api/upload", files={"files": ("x.ddviz", outside.read_bytes())}).json()
    sent = {
        "path": path,
        "orig_name": "../../etc/passwd",
        "url": "http://evil/",
        "meta": {"_type": "gradio.FileData"},
    }
    viewer = call(client, drop, [sent]).json()["data"][0]
    assert viewer["trace"]
    Path(path).unlink()
    answer = call(client, drop, [sent])
    assert answer.status_code == 400 and "not here any more" in answer.json()["error"]


def test_an_upload_is_bounded_in_bytes_and_all_of_them_together(client, monkeypatch):
    monkeypatch.setattr(guard, "MAX_UPLOAD_BODY", 100_000)
    answer = client.post("/gradio_api/upload", files={"files": ("x", bytes(200_000))})
    assert answer.status_code == 413 and is_sentence(answer)
    monkeypatch.setattr(guard, "MAX_UPLOADS", -1)
    answer = client.post("/gradio_api/upload", files={"files": ("x", b"x")})
    assert answer.status_code == 413 and "try again tomorrow" in answer.json()["error"]


def test_an_upload_for_which_there_is_no_room_says_so(client, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(gradio.route_utils, "NamedTemporaryFile", full)
    answer = client.post("/gradio_api/upload", files={"files": ("x", b"x")})
    assert answer.status_code == 507 and "can't be kept (No space left on device)" in answer.json()["error"]


def test_an_upload_that_is_no_form_is_one_sentence(client):
    for content, kind in [
        (b"x", "multipart/form-data"),
        (b"x", "multipart/form-data; boundary=a"),
        (b"--a\r\n\r\n", "multipart/form-data; boundary=a"),
        (
            b'--a\r\nContent-Disposition: form-data; name="files"\r\n\r\nx\r\n--a--',
            "multipart/form-data; boundary=a",
        ),
        (b"x", "text/plain"),
        (b"", ""),
    ]:
        answer = client.post("/gradio_api/upload", content=content, headers={"Content-Type": kind})
        assert answer.status_code in (200, 400) and "Traceback" not in answer.text


# The page --------------------------------------------------------------------------------------------


def test_the_page_allows_its_own_scripts_alone(client):
    answer = client.get("/")
    rules = dict(rule.partition(" ")[::2] for rule in answer.headers["content-security-policy"].split("; "))
    assert rules["default-src"] == "'none'" and rules["connect-src"] == "'self'"
    assert "'unsafe-inline'" not in rules["script-src"] and "sha256-" in rules["script-src"]
    assert rules["frame-ancestors"] == "'none'"
    for path in ("/config", "/theme.css", "/nothing"):
        assert client.get(path).headers["content-security-policy"].startswith("default-src 'none'")
        assert client.get(path).headers["x-content-type-options"] == "nosniff"


@pytest.mark.browser
def test_the_whole_app_works_under_its_policy_and_asks_nobody_else(browser, app, client, config, tmp_path):
    """`watched_page` fails on a line in the console, which each violation of the policy writes."""
    bar = component_of(config, "status")
    ask(client, bar, "control", {"action": "stop"})  # what other tests began
    wait_until(lambda: ask(client, bar, "status", {}).json()["state"] == "ready")
    asked, seen = [], []
    with watched_page(browser) as watched:
        watched.on("request", lambda request: asked.append(request.url))
        watched.on("response", lambda answer: answer.status >= 400 and seen.append(answer.url))
        page = AppPage(watched, app)
        watched.page.evaluate(
            "addEventListener('securitypolicyviolation', (e) => console.error(e.blockedURI))"
        )
        page.generate()
        page.wait_for_steps(4)
        page.wait_for_live_tree()
        page.press("Stop")
        page.wait_for_state("ready")
        page.tab("Replay")
        page.pick("Sample", "story")
        page.pick("Saved run", EVIL.replace("/", "∕"))  # names of files are text
        page.drop(write_trace(tmp_path / "dropped.ddviz", steps=3).path)
        page.wait_for_new_view()
        page.page.keyboard.press("e")
        page.page.get_by_role("dialog", name="Export").get_by_text("about").first.wait_for()
        page.page.keyboard.press("Escape")
        page.tab("Compare")
        page.tab("Learn")
        page.viewer().get_by_role("button", name="Answer").first.wait_for()
        assert watched.page.title() == "ddviz"
        page.assert_quiet()
    assert len(asked) > 20 and seen == []
    assert {urlsplit(url).netloc for url in asked if url.startswith("http")} == {urlsplit(app).netloc}


@pytest.mark.browser
def test_a_page_of_another_site_gets_nothing(browser, app, tmp_path):
    """A file in the browser: its origin is null, the app another."""
    (tmp_path / "evil.html").write_text(
        f"""<script>
        const json = {{method: "POST", headers: {{"Content-Type": "application/json"}}, body: "{{}}"}};
        const tries = [["/config"], ["/gradio_api/run/predict", json],
          ["/gradio_api/component_server", {{method: "POST", body: "{{}}"}}],
          ["/config", {{mode: "no-cors"}}]];
        Promise.all(tries.map(([path, how]) => fetch("{app}" + path, how)
          .then((answer) => answer.text()).catch(() => "")))
          .then((texts) => (document.title = "got " + texts.join("")));
        </script><iframe src="{app}/"></iframe>"""
    )
    page = browser.new_context().new_page()
    try:
        page.goto((tmp_path / "evil.html").as_uri())
        page.wait_for_function("() => document.title.startsWith('got')")
        assert page.title() == "got"
        assert page.frames[1].locator(".ddviz-bar").count() == 0
    finally:
        page.context.close()


# Passwords -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("locked")
    set_password(folder / "auth", "ann", "correct horse")
    write_trace(folder / "story.ddviz", steps=3)
    access = Access(auth_file=folder / "auth")
    page, url = launch(None, folder / "runs", folder, port=free_port(), block=False, access=access)
    yield url.rstrip("/")
    page.close()


def test_without_the_password_nothing_of_the_app_is_told(locked):
    with httpx.Client(base_url=locked, trust_env=False, timeout=20) as client:
        assert "story" not in client.get("/").text and "ddviz-bar" not in client.get("/").text
        load = client.get("/gradio_api/startup-events")  # what is said to anyone is a yes or no
        assert load.json() in (True, False)
        for answer in (client.get("/config"), call(client, 3, [])):
            assert answer.status_code == 401
        assert client.post("/gradio_api/upload", files={"files": ("x", b"x")}).status_code == 401
        for wrong in ({"username": "ann", "password": "wrong"}, {"username": "eve", "password": ""}, {}):
            assert client.post("/login", data=wrong).status_code in (400, 422)
        assert client.get("/config").status_code == 401
        right = {"username": "ann", "password": "correct horse"}
        assert client.post("/login", data=right).status_code == 200
        bar = component_of(client.get("/config").json(), "status")
        assert ask(client, bar, "status", {}).json()["state"] == "off"
        client.cookies.clear()
        assert ask(client, bar, "status", {}).status_code == 401


@pytest.mark.browser
def test_the_page_asks_for_the_password(browser, locked):
    with watched_page(browser) as watched:
        page = watched.page
        page.goto(locked)
        page.get_by_label("username").fill("ann")
        page.get_by_label("password").fill("correct horse")
        page.get_by_role("button", name="Login").click()
        page.locator(".ddviz-control-generate").wait_for(state="attached")
        assert watched.trouble == []
        page.context.clear_cookies()
