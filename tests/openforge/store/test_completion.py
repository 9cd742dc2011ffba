import pytest

from openforge.store.completion import complete
from openforge.store.schema import BY_NAME


def offered(before: str, after: str = "") -> list[str]:
    return [one.text for one in complete(before, before + after)]


@pytest.mark.parametrize("word", ["from", "FROM", "left join", "describe"])
def test_a_view_comes_where_rows_come_from(word: str) -> None:
    assert offered(f"select * {word} ro") == ["rollouts"]
    assert offered(f"select * {word} rew") == []


def test_what_the_query_names_itself_can_be_selected_from() -> None:
    assert offered("with best as (select 1), better as (select 2) select * from be") == ["best", "better"]


def test_columns_are_those_of_the_views_that_are_named_even_further_on() -> None:
    assert offered("select fing", " from rollouts") == []
    assert offered("select fing", " from harnesses") == ["fingerprint"]
    assert offered("select fing") == ["fingerprint"]  # no view is named yet: any may come
    assert offered("select logp", " from rollouts join tokens using (rollout_id)") == ["logprob"]


def test_members_of_an_alias_and_of_a_view() -> None:
    assert offered("select c.tt", " from calls c") == ["c.ttft_s"]
    assert offered("select c.tt", " from calls as C") == ["c.ttft_s"]
    assert offered("select calls.tt", " from calls where true") == ["calls.ttft_s"]
    assert offered("select t.", " from tokens t") == [f"t.{column.name}" for column in BY_NAME["tokens"].columns]
    assert offered("select x.tt", " from calls c") == []
    assert offered("select where.tt", " from calls where true") == []


def test_words_and_functions_come_after_columns_and_words_in_the_case_they_are_typed_in() -> None:
    found = offered("select re", " from rollouts")
    assert found[0] == "reward"
    assert "replace(" in found
    assert offered("sel") == ["select"]
    assert offered("SEL") == ["SELECT"]
    assert offered("select 1 from runs order") == ["order by"]


@pytest.mark.parametrize(
    "before",
    [
        "",
        "select ",
        "select 12",
        "select * from runs where state = 'ru",
        "select 1 -- ro",
        "select * from rollouts",
        "select reward",
    ],
)
def test_nothing_comes_for_no_word_a_whole_word_a_string_or_a_comment(before: str) -> None:
    assert offered(before) == []


def test_each_says_what_it_is() -> None:
    assert complete("select * from ego", "")[:1] == []
    (one,) = complete("select * from egr", "select * from egr")
    assert one.about == "What a sandbox tried to reach besides the model"
    (one,) = complete("select ttf", "select ttf from calls")
    assert one.about == "column of calls"
