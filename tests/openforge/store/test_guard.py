import duckdb
import pytest

from openforge.errors import UsageError
from openforge.store import guard
from openforge.store.connect import new_connection
from openforge.store.jail import table_functions

FUNCTIONS = table_functions(new_connection())

READS = [
    "SELECT 1",
    "select count(*) from calls",
    "FROM runs",
    "VALUES (1)",
    "TABLE runs",
    "(select 1)",
    "WITH x AS (SELECT 1 AS a) SELECT * FROM x",
    "DESCRIBE calls",
    "SUMMARIZE calls",
    "SHOW TABLES",
    "PIVOT calls ON dialect USING count(*)",
    "UNPIVOT runs ON run_id, state",
    "EXPLAIN SELECT 1",
    "EXPLAIN ANALYZE SELECT 1",
    "EXPLAIN (FORMAT json) SELECT 1",
    "SELECT * FROM range(3), unnest([1])",
    "SELECT 'copy (select 1) to ''x''' -- read_text('x')",
    "SELECT /* read_text('x') */ 1",
    'SELECT ("set") FROM (SELECT 1 AS "set")',
    "SELECT count(comment), max(truncate) FROM (SELECT 1 AS comment, 2 AS truncate)",
    "SELECT * REPLACE ('é' AS run_id) FROM runs",
    "SELECT [x + 1 for x in [1, 2]]",
    "SELECT $$read_text('x')$$",
    "SELECT current_setting FROM (SELECT 'pg_settings' AS current_setting)",
]
REFUSED = [
    "",
    "-- nothing",
    "SELECT 1; SELECT 2",
    "SELECT FROM WHERE",
    "COPY (SELECT 1) TO 'x'",
    "WITH a AS (COPY (SELECT 1) TO 'x') SELECT 1",
    "WITH a AS MATERIALIZED (\n /* */ copy(select 1) to 'x') SELECT 1",
    "WITH a AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM a",
    "WITH a AS (DELETE FROM t RETURNING *) SELECT * FROM a",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO 'x'",
    "EXPLAIN ANALYZE INSERT INTO t VALUES (1)",
    "EXPLAIN (FORMAT json) COPY (SELECT 1) TO 'x'",
    "CREATE TABLE t AS SELECT 1",
    "CREATE OR REPLACE VIEW calls AS SELECT 1",
    "ATTACH 'x.duckdb'",
    "INSTALL quack",
    "LOAD httpfs",
    "SET memory_limit = '100GB'",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "EXPORT DATABASE 'x'",
    "IMPORT DATABASE 'x'",
    "USE memory",
    "BEGIN",
    "PREPARE p AS SELECT 1",
    "CHECKPOINT",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM READ_TEXT ('/etc/passwd')",
    "SELECT * FROM \"read_text\"('/etc/passwd')",
    "SELECT * FROM main.read_csv('/etc/passwd')",
    "SELECT * FROM system.main.read_blob /* */ ('/etc/passwd')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM read_parquet('x')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM parquet_metadata('x')",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('calls')",
    "SELECT * FROM json_execute_serialized_sql('x')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM _read_call_close()",
    "SELECT (SELECT content FROM read_text('/etc/passwd'))",
    "DESCRIBE SELECT * FROM read_text('/etc/passwd')",
    "SELECT current_setting('allowed_paths')",
    "SELECT \"Current_Setting\" ('allowed_paths')",
    "SELECT 'allowed_paths'.current_setting()",
    "SELECT setting FROM pg_catalog.pg_settings",
    'FROM "PG_settings"',
    "SELECT macro_definition FROM duckdb_functions()",
    "SELECT getvariable('x')",
    "SELECT getenv('HOME')",
    "SELECT write_log('x')",
    "SELECT nextval('x')",
]


@pytest.mark.parametrize("sql", READS)
def test_what_only_reads_may_run(sql: str) -> None:
    guard.check(sql, FUNCTIONS)


@pytest.mark.parametrize("sql", REFUSED)
def test_what_does_more_than_read_the_views_is_refused(sql: str) -> None:
    with pytest.raises(UsageError):
        guard.check(sql, FUNCTIONS)


def test_every_table_function_that_is_not_named_as_harmless_is_refused() -> None:
    assert len(FUNCTIONS) > 100
    for name in set(FUNCTIONS) - guard._TABLE_FUNCTIONS:
        with pytest.raises(UsageError):
            guard.check(f"SELECT * FROM {name}('x')", FUNCTIONS)


@pytest.mark.parametrize(
    ("sql", "near"),
    [
        ("SELECT * FROM rolouts", "rollouts"),
        ("SELECT rewrd FROM rollouts", "reward"),
        ("SELECT r.atempt FROM rollouts r", "attempt"),
    ],
)
def test_an_error_names_the_nearest_view_or_column(sql: str, near: str) -> None:
    with pytest.raises(duckdb.Error) as caught:
        new_connection().sql(sql).fetchall()
    told = guard.explain(caught.value)
    assert f"did you mean {near}?" in told.hint


def test_a_syntax_error_shows_the_place() -> None:
    with pytest.raises(UsageError, match="LINE 1: SELECT FROM WHERE"):
        guard.check("SELECT FROM WHERE", [])
