"""The command `rbfly`, also `python -m rbfly`."""

import os
import sys

MISSING = (
    "rbfly: install RbFly's extra `cli` (click and rich) for the command line; only `rbfly broker`"
    ' works without it'
)


def main() -> int:
    """Run the command that the arguments of the process name; return the exit code."""
    # If they are closed before the start, each would replace the other.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, 'w')  # noqa: SIM115 - until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, 'w')  # noqa: SIM115
    command, *args = sys.argv[1:] or ['']
    if command == 'broker':  # works without the extra
        from .testing.command import main as broker

        return broker(args)
    try:
        import click as click
    except ModuleNotFoundError as ex:
        if ex.name != 'click':
            raise
        print(MISSING, file=sys.stderr)
        return 1
    from .cli.main import main as run

    return run(sys.argv[1:])


if __name__ == '__main__':
    sys.exit(main())
