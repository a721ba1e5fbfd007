"""Runs a command until it ends, fails, or is interrupted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..closed_pipe import discard_output
from ..error import (
    AuthenticationError,
    RbFlyError,
    StreamConnectionError,
    StreamDoesNotExist,
    TLSError,
    URIError,
    VirtualHostError,
)

if TYPE_CHECKING:
    import asyncio

# Exit codes, besides 0, and 2 for wrong arguments.
FAILED = 1
PARTIAL = 3
INTERRUPTED = 128 + signal.SIGINT

T = TypeVar('T')

# What to do about an error; the first class that matches counts.
ADVICE: dict[type[RbFlyError], str] = {
    URIError: 'see --uri',
    AuthenticationError: 'check the user and the password of --uri',
    VirtualHostError: 'check the virtual host of --uri, and the rights of the user',
    TLSError: 'check the scheme and the port of --uri, and --tls-ca',
    StreamConnectionError: 'does a broker with the plugin rabbitmq_stream run there? (see --uri)',
}


def run(
    main: Coroutine[Any, Any, T],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run a coroutine; Ctrl-C, SIGTERM and SIGHUP cancel it.

    :raises KeyboardInterrupt: the coroutine was cancelled by Ctrl-C.
    :raises click.exceptions.Exit: it was cancelled by SIGTERM or SIGHUP.
    """
    import asyncio

    received = 0

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None

        def terminate(number: int) -> None:
            nonlocal received
            received = number
            task.cancel()

        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):  # on Windows
            loop.add_signal_handler(signal.SIGTERM, terminate, signal.SIGTERM)
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as after `nohup`
                loop.add_signal_handler(signal.SIGHUP, terminate, signal.SIGHUP)
        return await main

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            return runner.run(cancellable())
        except asyncio.CancelledError:
            if not received:
                raise
    raise click.exceptions.Exit(128 + received)


def describe(error: Exception) -> str:
    """Return the text of an error in one line, and what to do."""
    text = ' '.join(str(error).split()) or type(error).__name__
    if isinstance(error, StreamDoesNotExist) and 'does not exist' in text:
        group = 'super-stream' if 'super stream' in text else 'stream'
        return f'{text}; create it with `rbfly {group} create`'
    for kind, advice in ADVICE.items():
        if isinstance(error, kind):
            return f'{text.rstrip(".")}; {advice}'
    return text


def show(path: str, text: str) -> None:
    """Write one line to stderr."""
    with suppress(OSError):  # nobody reads it
        print(f'{path}: {text}', file=sys.stderr, flush=True)


def show_error(error: click.ClickException, path: str) -> None:
    """Write a usage error, or another one of click, to stderr in one line."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()  # the help
        return
    text = ' '.join(error.format_message().split())
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else path
        text = f'{text.rstrip(".")} (see `{path} --help`)'
    show(path, text)


def guarded(call: Callable[[], object]) -> int:
    """Run a command, and return its exit code; describe its error on stderr."""
    try:
        result = call()
    except click.exceptions.Exit as ex:
        return ex.exit_code
    except click.exceptions.Abort:  # at a question
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    except click.ClickException as ex:
        show_error(ex, 'rbfly')
        return ex.exit_code
    except BrokenPipeError:  # the reader of the output has gone
        discard_output()
        return 0
    except (RbFlyError, OSError) as ex:
        show('rbfly', describe(ex))
        return FAILED
    return result if isinstance(result, int) else 0
