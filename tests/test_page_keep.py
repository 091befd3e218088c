"""What a visitor keeps of a run, and shows to others."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser import Visit, run, share

pytestmark = pytest.mark.browser


def test_a_run_becomes_files(visit: Visit) -> None:
    page = visit()
    run(page)
    for kind, begins in (("html", b"<!doctype html>"), ("png", b"\x89PNG")):
        with page.expect_download() as download:
            share(page, kind)
        assert Path(download.value.path()).read_bytes().startswith(begins)
        assert download.value.suggested_filename == f"specdemo-race.{kind}"
    expect(page.locator(".figures")).to_contain_text("repeats")
