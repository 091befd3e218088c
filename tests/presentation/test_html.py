from hypothesis import given
from hypothesis import strategies as st

from specdemo.presentation.html import Markdown, Span, render, round_html
from specdemo.records import Round, Token

ANSWER = "# Sum\n\nUse **both** `a` and b:\n\n```python\n# add\nsum(a, b)\n```\nDone, # 1."


def pieces(*tokens: str) -> list[Span]:
    markdown = Markdown()
    return [piece for token in tokens for piece in markdown.spans(token)]


def styled(*tokens: str) -> dict[str, str]:
    """The text of each style."""
    found: dict[str, str] = {}
    for piece in pieces(*tokens):
        found[piece.style] = found.get(piece.style, "") + piece.text
    return found


def test_headings_bold_text_and_code_are_told_apart() -> None:
    found = styled(ANSWER)
    assert found["heading"] == " Sum"
    assert found["strong"] == "both"
    assert found["code"] == "a"
    assert found["block"] == "# add\nsum(a, b)\n"
    assert found["mark"] == "#****``" + "```python```\n"
    assert found["text"].endswith("Done, # 1.")


def test_it_does_not_matter_where_tokens_end() -> None:
    words = [
        "#",
        " Sum",
        "\n\n",
        "Use",
        " **",
        "both",
        "**",
        " `",
        "a",
        "`",
        " and b",
        ":\n\n",
        "```",
        "python",
        "\n",
    ]
    words += ["#", " add", "\nsum", "(a, b)\n", "```", "\nDone, ", "# 1."]
    assert "".join(words) == ANSWER
    assert styled(*words) == styled(ANSWER)


def test_bold_text_and_code_may_go_on_in_the_next_line_but_not_in_the_next_paragraph() -> None:
    assert styled("**two\nlines** and `more\ncode`") == {
        "mark": "****``",
        "strong": "twolines",
        "code": "morecode",
        "text": "\n and \n",
    }
    for end in ("\n\nNext", "\n- Next", "\n# Next", "\n```\nNext", "\n| Next"):
        found = styled(f"2 **3{end}")
        assert found["strong"] == "3"
        assert "Next" not in found["strong"]
    assert styled("an open ` and\n```\nblock\n```")["block"] == "block\n"


def test_rows_of_a_table_are_told_from_lines_that_hold_a_bar() -> None:
    table = "| a | `b` |\n|---|:-:|\n| **c** | d |"
    for tokens in ([table], ["|", " a", " |", " `", "b", "`", " |\n", "|--", "-|:-:|\n| ", "**c", "** | d |"]):
        found = styled(*tokens)
        assert (found["code"], found["strong"]) == ("b", "c")
        assert found["row"].split() == ["a", "d"]
        assert "---" in found["rule"]
    assert set(styled("a | b\nx|y")) == {"text"}


@given(st.lists(st.text("ab#*`|- \n<", max_size=6)))
def test_nothing_is_left_out(tokens: list[str]) -> None:
    assert "".join(piece.text for piece in pieces(*tokens)) == "".join(tokens)


def test_a_code_block_has_a_button_and_stays_a_token_of_its_verdict() -> None:
    step = Round(committed=(Token(id=1, text="```\n<b>\n```"),), seconds=0.1)
    html = round_html(step, side="plain", number=1, first=0, source="measured", markdown=Markdown())
    assert html.count('class="copy"') == 1
    assert '<span class="md-block" data-block="1">&lt;b&gt;</span>' in html
    assert html.count("data-index=") == 1


def test_a_whole_answer_is_rendered_and_what_it_holds_is_escaped() -> None:
    html = render("**bold** <b>no</b> ![x](http://a.example/b.png) [y](javascript:alert(1))\n\n```\n<i>\n```")
    assert "<strong>bold</strong> &lt;b&gt;no&lt;/b&gt;" in html
    assert "&lt;i&gt;" in html
    assert html.count('class="copy"') == 1
    assert not any(tag in html for tag in ("<img", "<a ", "<b>", "<i>"))
