"""Runs that a visitor keeps and shares."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.browser import BRIEF, Visit, finish, repeated, run, set_slider, share

pytestmark = pytest.mark.browser


def test_runs_become_files_are_kept_found_again_and_overlaid(visit: Visit) -> None:
    page = visit(BRIEF)
    kept = page.locator(".past li")
    expect(page.locator(".past")).to_be_hidden()
    run(page)
    for kind, begins in (("html", b"<!doctype html>"), ("png", b"\x89PNG")):
        with page.expect_download() as download:
            share(page, kind)
        assert Path(download.value.path()).read_bytes().startswith(begins)
        assert download.value.suggested_filename == f"specdemo-race.{kind}"
    expect(page.locator(".figures")).to_contain_text("repeats")
    expect(kept).to_have_count(1)
    set_slider(page, "num_assistant_tokens", 2)
    page.fill("#prompt textarea", "<b>Tell</b>")
    run(page)
    expect(kept).to_have_count(2)
    expect(kept.first).to_contain_text("<b>Tell</b>")
    expect(kept.first).to_contain_text("lookahead 2")
    repeated(page)
    page.reload()
    expect(kept).to_have_count(2)
    page.fill(".past input[type=search]", "lookahead 2")
    expect(kept).to_have_count(1)
    kept.locator(".open").click()
    finish(page)
    expect(page.locator(".made-by")).to_contain_text("lookahead 2")
    expect(page.locator(".pane.plain .prompt")).to_have_text("<b>Tell</b>")
    expect(kept).to_have_count(1)  # opening one keeps no other
    page.fill(".past input[type=search]", "")
    for box in kept.locator("input").all():
        box.check()
    page.click(".past .overlay")
    finish(page)
    expect(page.locator(".pane.plain h2")).to_have_text("Lookahead 4")
    expect(page.locator(".pane.speculative h2")).to_have_text("Lookahead 2")
    expect(page.locator(".pane.plain .token.accepted").first).to_be_visible()
    expect(page.locator(".agreement")).to_have_text("")  # answers to different prompts
    lengths = page.locator(".chart").evaluate_all(
        "charts => charts.slice(0, 2).map(({ data }) => data.map(({ x }) => x.length > 0))"
    )
    assert lengths == [[True, True], [True, True, True, True]]
    kept.first.locator(".drop").click()
    expect(kept).to_have_count(1)
    page.click(".past .forget")
    expect(page.locator(".past")).to_be_hidden()
    run(page)
    expect(page.locator(".pane.plain h2")).to_have_text("Plain")


def test_the_best_setting_is_found_applied_and_told(visit: Visit) -> None:
    page = visit("/#engine=traced&max_new_tokens=16&ignore_eos=true&num_assistant_tokens=1")
    page.click("#find")
    expect(page.locator("#message")).to_contain_text("Before, lookahead 1 reached")
    expect(page.locator("#message")).to_contain_text("Set: policy auto reached")
    expect(page.locator("#policy input:checked")).to_have_value("auto")
    expect(page.locator("#find")).to_be_enabled()
