"""The doctor's findings in the app: what the server function answers, and the list in Replay and in Live."""

import copy

import pytest

from ddviz.app import findings as module
from ddviz.app.export import exported
from ddviz.app.findings import findings_function
from tests.app.app_page import AppPage, served_app
from tests.app.fake_engine import FakeEngine
from tests.browser import watched_page
from tests.check.test_doctor import GREEDY, positions_by_index
from tests.synthetic import events_of, recorded, write_trace

NOT_IDS = [None, 7, [], "", "../../etc/passwd", "unknown"]


def write_sick(path):
    events = copy.deepcopy(events_of(GREEDY))
    positions_by_index(events)
    return recorded(path, events)


def asked(session, trace_id):
    return findings_function(session)({"trace": trace_id})


@pytest.mark.parametrize("trace", NOT_IDS)
def test_an_id_that_was_never_given_out_is_refused(session, trace):
    assert list(asked(session, trace)) == ["error"]


def test_findings_are_plain_data_and_none_where_nothing_is_wrong(session, folders):
    write_trace(folders[0] / "a.ddviz", GREEDY)
    write_sick(folders[0] / "b.ddviz")
    clean, sick = (entry.id for entry in session.registry.samples())
    assert asked(session, clean) == {"findings": []}
    (first, *_) = asked(session, sick)["findings"]
    assert (first["rule"], first["severity"], first["step"], first["node"]) == ("positions", "fault", 1, 2)


def test_a_trace_that_grows_waits_and_one_that_was_cut_off_does_not(session, folders, monkeypatch):
    path = write_trace(folders[1] / "a.ddviz", GREEDY)
    path.write_bytes(path.read_bytes()[:-120])
    trace_id = session.registry.add(path)
    monkeypatch.setattr(session, "growing", lambda trace: True)
    assert asked(session, trace_id) == {"findings": None}
    monkeypatch.setattr(session, "growing", lambda trace: False)
    assert {finding["rule"] for finding in asked(session, trace_id)["findings"]} == {"incomplete"}


def test_a_trace_is_examined_once_and_again_when_its_file_changed(session, folders, monkeypatch):
    examined = []
    real = module.examine_path
    monkeypatch.setattr(module, "examine_path", lambda path: examined.append(path) or real(path))
    path = write_trace(folders[1] / "a.ddviz", GREEDY)
    trace_id = session.registry.add(path)
    assert asked(session, trace_id) == asked(session, trace_id) == {"findings": []}
    path.unlink()
    write_sick(path)
    assert asked(session, trace_id)["findings"] and len(examined) == 2


def test_an_exported_page_holds_the_findings(session, folders):
    write_sick(folders[0] / "a.ddviz")
    (entry,) = session.registry.samples()
    page = exported(session, {"trace": entry.id, "to": "html", "step": 0})["text"]
    assert page.count('data-ddviz="findings"') == 1


@pytest.mark.browser
def test_the_list_stands_beside_the_view_in_replay_and_after_a_live_run(browser, tmp_path_factory):
    samples, runs = tmp_path_factory.mktemp("samples"), tmp_path_factory.mktemp("runs")
    write_trace(samples / "clean.ddviz", GREEDY)
    sick = write_sick(tmp_path_factory.mktemp("dropped") / "sick.ddviz")
    engine = FakeEngine()
    with served_app(engine, runs, samples) as url, watched_page(browser) as watched:
        app = AppPage(watched, url)
        app.tab("Replay")
        app.pick("Sample", "clean")
        app.viewer().get_by_text("no findings").wait_for()
        app.drop(sick)
        app.wait_for_new_view()
        app.viewer().locator(".ddviz-finding").first.click()
        app.viewer().get_by_text("step 1 ·").wait_for()
        app.page.wait_for_function("location.hash.includes('step=1&node=2')")
        app.tab("Live")
        app.wait_for_state("ready")
        app.fill("Prompt", "a prompt")
        app.fill("Max tokens", "12")
        app.generate()
        doctor = app.viewer().locator(".ddviz-findings header [role=status]", has_text="finding")
        app.viewer().get_by_text("end: max tokens reached").wait_for()
        app.page.wait_for_function(
            "() => [...document.querySelectorAll('.ddviz-host')].some((host) =>"
            " /finding|notice/.test(host.shadowRoot.querySelector('.ddviz-findings header').textContent))"
        )
        doctor.wait_for()  # a look at later steps says once more that it examines
        assert watched.trouble == []
    engine.close()
