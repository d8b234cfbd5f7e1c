"""The command line: one module a command group, errors as one line and a documented exit code.

Exit codes: 0 done; 1 a check found problems; 2 bad usage or configuration; 3 a needed service is
unreachable.
"""

import sys

import typer

from kvcustody.cli import (
    audit,
    bench,
    demo,
    gateway,
    init,
    inspect,
    keys,
    model,
    policy,
    serve,
    token,
)
from kvcustody.cli.common import printable
from kvcustody.errors import CustodyError, UnavailableError

EXIT_PROBLEMS = 1
EXIT_CONFIGURATION = 2
EXIT_UNREACHABLE = 3

app = typer.Typer(
    name="kvcustody",
    help="Custody for vLLM's offloaded KV cache.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("init")(init.init)
app.command("serve", context_settings=serve.CONTEXT)(serve.serve)
app.command("vllm-config")(serve.vllm_config)
app.command("gateway")(gateway.gateway)
app.command("demo")(demo.demo)
app.command("inspect")(inspect.inspect)
app.add_typer(keys.app, name="keys")
app.add_typer(policy.app, name="policy")
app.add_typer(token.app, name="token")
app.add_typer(model.app, name="model")
app.add_typer(audit.app, name="audit")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command line; the console script's entry point."""
    try:
        app()
    except UnavailableError as error:
        _fail(error, EXIT_UNREACHABLE)
    except CustodyError as error:
        _fail(error, EXIT_CONFIGURATION)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has seen enough, e.g. `| head`
        sys.exit(0)


def _fail(error: CustodyError, code: int) -> None:
    line = " ".join(str(error).split())
    sys.stderr.write(f"kvcustody: {printable(line)}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
