"""Style sheets in layers: Gradio's come first, whatever it writes."""

from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.testclient import TestClient

from specdemo.exports.html import PAGE, STYLES
from specdemo.ui.views import StyleLayers


def test_gradios_style_sheets_are_put_into_a_layer_and_nothing_else_is(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("b { color: red }")
    (tmp_path / "a.js").write_text("b")
    files = StaticFiles(directory=tmp_path)
    client = TestClient(StyleLayers(Starlette(routes=[Mount("/assets", files), Mount("/specdemo", files)])))
    answer = client.get("/assets/a.css")
    assert answer.text == "@layer gradio {b { color: red }}"
    assert int(answer.headers["content-length"]) == len(answer.text)
    again = client.get("/assets/a.css", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.text) == (304, "")
    assert client.head("/assets/a.css").text == ""
    assert client.get("/assets/a.js").text == "b"
    assert client.get("/specdemo/a.css").text == "b { color: red }"


def test_the_order_of_layers_is_named_first_and_each_rule_of_ours_is_in_one() -> None:
    sheets = {name: (PAGE / name).read_text(encoding="utf-8") for name in (*STYLES, "gradio.css")}
    assert "@layer gradio, tokens, arranged, views;" in sheets[STYLES[0]]
    for name, text in sheets.items():
        depth = 0
        for line in text.partition("*/")[2].splitlines():
            assert depth or not line or line.startswith("@layer"), (name, line)
            depth += line.count("{") - line.count("}")
        assert depth == 0, name
        assert name == "gradio.css" or "!important" not in text
