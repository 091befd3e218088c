import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.text import printable, without_folders


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b[31mred\x1b]8;;http://x\x07", r"\x1b[31mred\x1b]8;;http://x\x07"),
        ("exe\u202etxt", r"exe\u202etxt"),
        ("Größe 日本 👩‍👩‍👧", "Größe 日本 👩‍👩‍👧"),
    ],
)
def test_control_characters_in_names_are_escaped(name: str, shown: str) -> None:
    assert printable(name) == shown


@given(st.text())
def test_only_line_breaks_and_tabs_stay_unescaped(text: str) -> None:
    shown = printable(text, lines=True)
    assert all(each.isprintable() or each in "\n\t" or ord(each) > 0x9F for each in shown)
    assert printable(shown, lines=True) == shown
    assert not set(printable(text)) & set("\n\r\t\x1b\x9b\u202e\u2028")


def test_visitors_see_no_folders() -> None:
    said = "Cannot open '/home/me/models/x.bin' (C:\\Users\\me\\y.bin), see https://docs.example/a/b and a/b"
    assert without_folders(said) == "Cannot open 'x.bin' (y.bin), see https://docs.example/a/b and a/b"
