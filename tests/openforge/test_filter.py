import pytest
from hypothesis import given
from hypothesis import strategies as st

from openforge.errors import UsageError
from openforge.filter import parse_filter

ROW = {"task": "fix-mean", "state": "failed", "reward": 0.5, "calls": 12, "detail": None}


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", True),
        ("FIX", True),
        ("fix.*n$", True),
        ("pi", False),
        ("!pi", True),
        ("!fix", False),
        ("-f fxmn", True),
        ("-f nmxf", False),
        ("-l state=failed", True),
        ("-l state=FAILED,reward<1", True),
        ("-l reward>=0.5,calls=12", True),
        ("-l calls=12.0", True),
        ("-l calls!=12", False),
        ("-l detail=", True),
        ("-l task<3", False),
        ("!-l state=failed", False),
    ],
)
def test_what_passes(text: str, passes: bool) -> None:
    assert parse_filter(text)(ROW) is passes


@pytest.mark.parametrize(("text", "named"), [("(", "regular expression"), ("-l state", "COLUMN=VALUE")])
def test_what_cannot_be_meant_says_what_can(text: str, named: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_filter(text)
    assert named in f"{raised.value.summary} {raised.value.hint}"


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="no column 'colour'"):
        parse_filter("-l colour=red")(ROW)


@given(st.text(), st.dictionaries(st.sampled_from("abc"), st.none() | st.text() | st.floats() | st.integers()))
def test_a_filter_and_its_inverse_never_agree(text: str, row: dict[str, object]) -> None:
    try:
        passes = parse_filter(text)
    except UsageError:
        return
    if text.strip() and not text.strip().startswith(("-l", "!")):
        assert passes(row) is not parse_filter(f"!{text}")(row)
