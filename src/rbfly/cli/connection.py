"""The options of commands that connect to a broker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .profiles import find_profile
from .values import Number

if TYPE_CHECKING:
    import ssl

    from rbfly.streams import StreamsClient

DEFAULT_URI = 'rabbitmq-stream://localhost'
CONNECT_TIMEOUT = 10.0  # seconds; RabbitMQ 4.0 may accept no connection for 5
RECONNECT_TIMEOUT = 60.0  # seconds
META = 'rbfly.connection'  # where click keeps what the options say


def remember(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    """Keep the value of an option; that of a command comes after, and replaces, the group's."""
    assert option.name is not None
    source = ctx.get_parameter_source(option.name)
    if source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        is_explicit = source is ParameterSource.COMMANDLINE
        ctx.meta.setdefault(META, {})[option.name] = (value, is_explicit)


def connection_options(*, of_group: bool) -> list[click.Option]:
    """Return the options, which stand before the command as well as after it.

    :param of_group: also read the environment.
    """

    def option(*names: str, variable: str | None = None, **settings: Any) -> click.Option:
        return click.Option(
            names,
            envvar=variable if of_group else None,
            show_envvar=True,
            callback=remember,
            expose_value=False,
            **settings,
        )

    file = click.Path(exists=True, dir_okay=False, readable=True)
    return [
        option(
            '--uri',
            variable='RBFLY_URI',
            multiple=True,
            metavar='URI',
            help='Address of the broker, such as rabbitmq-stream://user:password@host:5552/vhost;'
            ' repeat it to name several nodes.',
        ),
        option(
            '--profile',
            variable='RBFLY_PROFILE',
            metavar='NAME',
            help='Profile in the configuration file that has these options.',
        ),
        option(
            '--tls-ca',
            variable='RBFLY_TLS_CA',
            type=file,
            help="Certificates to verify the broker's, instead of the system's (PEM).",
        ),
        option(
            '--tls-cert',
            variable='RBFLY_TLS_CERT',
            type=file,
            help='Certificate of the client, if the broker asks for one (PEM).',
        ),
        option(
            '--tls-key',
            variable='RBFLY_TLS_KEY',
            type=file,
            help='Its key, unless it is in the same file (PEM).',
        ),
        option(
            '--tls-insecure',
            is_flag=True,
            help="Do not verify the broker's certificate; for tests only.",
        ),
        option(
            '--load-balancer',
            is_flag=True,
            help='The address leads to any node of the cluster.',
        ),
        option(
            '--connect-timeout',
            type=Number(min=0, min_open=True),
            metavar='SECONDS',
            help=f'Give up connecting after this time (default: {CONNECT_TIMEOUT:g}).',
        ),
        option('-v', '--verbose', count=True, help='Show the log; twice: with all details.'),
    ]


class ConnectedCommand(click.Command):
    """A command that connects: it takes the options, which the help of `rbfly` describes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.connecting: list[click.Option] = connection_options(of_group=False)
        self.params.extend(self.connecting)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = [
            record
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            and param not in self.connecting
            and (record := param.get_help_record(ctx)) is not None
        ]
        with formatter.section('Options'):
            formatter.write_dl(records)
        formatter.write_paragraph()
        formatter.write_text('The options of `rbfly --help` name the broker.')


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The broker to connect to.

    :ivar uris: its addresses, tried in turn.
    :ivar ssl: context for TLS; None for Python's default.
    :ivar load_balancer: the addresses lead to any node.
    :ivar connect_timeout: seconds.
    """

    uris: tuple[str, ...]
    ssl: ssl.SSLContext | None = None
    load_balancer: bool = False
    connect_timeout: float = CONNECT_TIMEOUT

    def client(self, **options: Any) -> StreamsClient:
        """Create a client with these and other options of `streams_client`."""
        from rbfly.streams import streams_client

        settings: dict[str, Any] = {
            'ssl': self.ssl,
            'load_balancer': self.load_balancer,
            'connect_timeout': self.connect_timeout,
            'reconnect_timeout': RECONNECT_TIMEOUT,
            'connection_name': click.get_current_context().command_path,
        }
        return streams_client(self.uris, **(settings | options))


def target() -> Target:
    """Return the broker that the command line, the environment or a profile names.

    :raises click.ClickException: a profile is missing or wrong, or a certificate cannot be read.
    """
    given: dict[str, tuple[Any, bool]] = click.get_current_context().meta.get(META, {})
    values = {name: value for name, (value, _) in given.items()}
    show_log(values.pop('verbose', 0))
    name = values.pop('profile', None)
    # A profile named on the command line counts more than an address in the environment.
    if 'profile' in given and given['profile'][1] and 'uri' in given and not given['uri'][1]:
        del values['uri']
    if name is not None or 'uri' not in values:
        profile = {key.replace('-', '_'): value for key, value in find_profile(name).items()}
        values = profile | values
    return target_of(values)


def target_of(values: dict[str, Any]) -> Target:
    """Return the broker that options describe.

    :raises click.ClickException: a certificate cannot be read.
    """
    uri = values.pop('uri', DEFAULT_URI)
    return Target(
        uris=(uri,) if isinstance(uri, str) else tuple(uri),
        ssl=tls_context(
            values.pop('tls_ca', None),
            values.pop('tls_cert', None),
            values.pop('tls_key', None),
            values.pop('tls_insecure', False),
        ),
        **values,
    )


def other_target(first: Target, uris: tuple[str, ...], profile: str | None) -> Target:
    """Return the second broker of a command; the first one if nothing names another.

    :param uris: its addresses, with the other settings of the profile, or else of the first broker.
    :raises click.ClickException: a profile is missing or wrong, or a certificate cannot be read.
    """
    if profile is None:
        return replace(first, uris=uris) if uris else first
    values = {key.replace('-', '_'): value for key, value in find_profile(profile).items()}
    return target_of(values | ({'uri': uris} if uris else {}))


def tls_context(
    ca: str | None, cert: str | None, key: str | None, insecure: bool
) -> ssl.SSLContext | None:
    """Return a context for TLS; None if no option asks for one."""
    if not (ca or cert or key or insecure):
        return None
    import ssl

    if key and not cert:
        raise click.UsageError('--tls-key needs --tls-cert')
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key)
    except (OSError, ValueError) as ex:
        names = ' or '.join(name for name in (ca, cert, key) if name)
        raise click.ClickException(f'cannot read {names}: {ex}') from ex
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def show_log(verbose: int) -> None:
    """Write warnings to stderr, or more of the log."""
    import logging

    levels = [logging.WARNING, logging.INFO, logging.DEBUG]
    logging.basicConfig(format='%(message)s')  # which begins with the name of the connection
    logger = logging.getLogger('rbfly')
    logger.setLevel(levels[min(verbose, len(levels) - 1)])
    if not verbose:  # the command tells the error of a call when it has given up
        net = logging.getLogger('rbfly.net')
        net.addFilter(lambda record: 'a call waits: ' not in record.getMessage())
