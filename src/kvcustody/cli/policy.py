"""`kvcustody policy`: check a policy, ask it, test it, compare it, and see what it would refuse."""

import typer

from kvcustody.cli import policy_check, policy_diff, policy_explain, policy_report, policy_tests

app = typer.Typer(help="Who may do what, and why.", no_args_is_help=True)
app.command("check")(policy_check.check)
app.command("explain")(policy_explain.explain)
app.command("test")(policy_tests.run)
app.command("diff")(policy_diff.diff)
app.command("report")(policy_report.report)
