from pathlib import Path

import pytest

from openforge.journal.records import HEADER, KINDS
from openforge.store import schema
from openforge.store.connect import connect

ROOT = Path(__file__).parents[3]
# The names that others rely on.
PROMISED = {
    "runs": "run_id created_at state config",
    "rollouts": "run_id rollout_id attempt task harness harness_version sample state error_class reward started_at"
    " ended_at calls prompt_tokens completion_tokens",
    "calls": "run_id rollout_id attempt call_id seq dialect mode stream status finish_reason prompt_ids completion_ids"
    " logprobs weight_version_min weight_version_max parent_call_id break_reason ttft_s duration_s request response",
    "messages": "rollout_id call_id position role text tool_calls tool_call_id",
    "tokens": "rollout_id call_id position token_id text sampled logprob weight_version",
    "samples": "rollout_id sample_id token_ids loss_mask logprobs reward is_main reason",
    "egress": "rollout_id ts host port decision rule",
    "metrics": "run_id step name value ts",
    "grades": "rollout_id reward details",
}


@pytest.mark.parametrize("view", PROMISED)
def test_a_view_has_the_columns_that_others_rely_on(view: str) -> None:
    assert set(PROMISED[view].split()) <= {column.name for column in schema.BY_NAME[view].columns}


@pytest.mark.parametrize("view", schema.VIEWS, ids=lambda view: view.name)
def test_duckdb_and_arrow_give_what_is_declared(view: schema.View, make_run, store_root: Path) -> None:
    make_run().rollout()
    con = connect(store_root)
    declared = [(column.name, column.type) for column in view.columns]
    assert [row[:2] for row in con.execute(f"DESCRIBE {view.name}").fetchall()] == declared
    assert con.sql(f"FROM {view.name}").to_arrow_table().schema == schema.arrow_schema(view)


@pytest.mark.parametrize("view", schema.VIEWS, ids=lambda view: view.name)
def test_every_view_is_empty_and_typed_in_an_empty_store(view: schema.View, tmp_path: Path) -> None:
    table = connect(tmp_path / "nothing").sql(f"FROM {view.name}").to_arrow_table()
    assert table.num_rows == 0
    assert table.schema == schema.arrow_schema(view)


@pytest.mark.parametrize("kind", KINDS)
def test_every_declared_column_of_a_record_can_be_read(kind: str, store_root: Path, make_run) -> None:
    make_run()
    names = [row[0] for row in connect(store_root).execute(f"DESCRIBE {schema.raw_name(kind)}").fetchall()]
    assert names == [column.name for column in (*HEADER, *KINDS[kind])]


def test_the_documentation_is_what_the_declaration_renders() -> None:
    path = ROOT / "docs" / "schema.md"
    hint = """python -c 'from openforge.store.schema import markdown; print(markdown(), end="")' > docs/schema.md"""
    assert path.read_text() == schema.markdown(), hint


def test_no_view_or_column_is_declared_twice_or_undocumented() -> None:
    assert len(schema.BY_NAME) == len(schema.VIEWS)
    for view in schema.VIEWS:
        names = [column.name for column in view.columns]
        assert len(names) == len(set(names))
        assert view.doc
