"""Uploads lie in a folder of their user's own, and do not stay for ever."""

import os
import stat
import time
from pathlib import Path

import pytest

from ddviz.app.main import launch
from ddviz.app.uploads import bytes_after_sweeping, made_uploads_folder, uploads_folder
from ddviz.errors import DdvizError
from tests.app.conftest import free_port

DAY_S = 24 * 60 * 60


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DDVIZ_CACHE", str(tmp_path))
    return uploads_folder()


def aged(path, seconds, content=b"12345"):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def test_the_folder_is_in_the_users_cache_and_open_to_nobody_else(folder, tmp_path):
    assert made_uploads_folder() == folder and folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_lies_beside_the_folder_is_left_alone(folder, tmp_path):
    beside = aged(tmp_path / "thesis.tex", 9 * DAY_S), aged(tmp_path / "tmpxyz", 9 * DAY_S)
    made_uploads_folder()
    assert all(path.exists() for path in beside)


def test_gradio_keeps_uploads_there(folder, tmp_path):
    page, _ = launch(None, tmp_path, tmp_path, port=free_port(), block=False)
    try:
        assert Path(page.app.uploaded_file_dir).name == folder.name
    finally:
        page.close()


def test_a_folder_that_others_may_enter_is_closed(folder):
    folder.mkdir(mode=0o755)
    made_uploads_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_of_somebody_else_is_refused(folder, monkeypatch):
    folder.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(DdvizError, match=r"it is another user's.*DDVIZ_CACHE"):
        made_uploads_folder()


def test_what_is_no_folder_or_leads_elsewhere_is_refused(folder, tmp_path):
    folder.write_text("")
    with pytest.raises(DdvizError, match="can't keep uploads there"):
        made_uploads_folder()
    folder.unlink()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DdvizError, match="it is a link"):
        made_uploads_folder()


def test_files_of_yesterday_and_parts_of_broken_uploads_are_removed(folder):
    folder.mkdir()
    old, new = aged(folder / "a1" / "old.ddviz", DAY_S + 60), aged(folder / "b2" / "new.ddviz", DAY_S - 60)
    left, under_way = aged(folder / "tmpabc", 600), aged(folder / "tmpdef", 10)
    named = aged(folder / "c3" / "tmp.ddviz", 600)  # whole, and only named so
    assert bytes_after_sweeping(folder) == 15
    assert not old.parent.exists() and not left.exists()
    assert new.exists() and under_way.exists() and named.exists()
