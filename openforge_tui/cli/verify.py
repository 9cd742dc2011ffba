"""`openforge verify RUN`: proof that what was recorded is what was sampled."""

from typing import TYPE_CHECKING, Annotated

import typer

from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    from openforge_tui.verify import Report

COLUMNS = ("rollout_id", "sample_id", "tokens", "sampled", "max_diff", "mean_diff", "position", "versions", "problem")


def register(app: typer.Typer) -> None:
    app.command()(verify)


def verify(
    run: Annotated[str, typer.Argument(help="A run id, a unique prefix of one, or `latest`.")] = "latest",
    concurrency: Annotated[int, typer.Option(min=1, help="Samples that a server scores at once.")] = 8,
    trained: Annotated[bool, typer.Option("--trained", help="Only samples that the run trained on.")] = False,
) -> None:
    """Send each sample's ids back to the policy and compare the recomputed logprobs with the recorded ones.

    Serves the recorded policy if nobody does. A training run is verified against its checkpoints, each token against
    the weights that sampled it; samples of weights that were not saved are counted. Exit code 5 when a sample differs
    by more than arithmetic does: wrong, missing or shifted tokens. `position` is where in the row the largest
    difference is.
    """
    from openforge.store.connect import find_run
    from openforge_tui.verify_run import verify_run

    store_root = settings.current().load().store_root
    run_id = find_run(store_root, run)
    report = output.run_async(verify_run(store_root, run_id, output.say, concurrency=concurrency, trained=trained))
    output.emit(rows(report), COLUMNS)
    output.say("\n".join(filter(None, (report.summary(), report.unverified()))))
    check(report)


def rows(report: "Report") -> list[dict[str, object]]:
    """The report as rows of COLUMNS."""
    return [{**vars(row), "versions": ",".join(row.versions)} for row in report.rows]


def check(report: "Report") -> None:
    """Raise CheckError when a sample failed."""
    from openforge.errors import CheckError

    if report.failures:
        first = report.failures[0]
        raise CheckError(
            f"{len(report.failures)} of {len(report.rows)} samples are not what was sampled; "
            f"the first is {first.sample_id}: {first.problem}",
            hint=f"openforge show {first.rollout_id}",
        )
