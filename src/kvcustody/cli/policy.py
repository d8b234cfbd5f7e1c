"""`kvcustody policy`: ask a policy."""

import typer

from kvcustody.cli import policy_explain

app = typer.Typer(help="Who may do what, and why.", no_args_is_help=True)


@app.callback()
def policy() -> None:
    """Who may do what, and why."""


app.command("explain")(policy_explain.explain)
