"""Checks of the arguments of the client's methods, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..checks import check_integer, check_stream, check_timeout, check_type, number_text
from ..error import ArgumentError, ArgumentTypeError, URIError
from ..later import datetime
from ..net.login import AuthMechanism
from ..net.uri import Settings
from ..protocol import commands
from ..protocol.compression import Compression, compressor
from ..protocol.const import ResponseCode
from ..protocol.offset import Offset, OffsetSource, OffsetType
from .types import MessageFilter, PublisherInfo

SEGMENT_SIZE_MAX = 3_000_000_000
SUB_ENTRY_MAX = 0xFFFF
BUSY_POLL_MAX = 0.1
IDS = 256  # of publishers, and of subscriptions, on a connection
PROPERTIES_MAX = 4096  # bytes: RabbitMQ from 4.3.5 on accepts frames of 8192 before it signs on
# As in AMQP 1.0.  The handshake fits, and so does every request with ASCII names: the longest is
# DeclarePublisher, 501 bytes with a name of 255 bytes and a stream name of 233.
FRAME_MIN = 512


def check_settings(settings: Settings) -> Settings:
    """Check the settings of a client, and return them."""
    if len({item.scheme for item in settings.endpoints}) > 1:
        raise URIError('the URIs of a client must all use TLS, or all use no TLS')
    check_type('auth_mechanism', settings.auth_mechanism, AuthMechanism)
    check_type('connection_name', settings.connection_name, str)
    commands.string(settings.connection_name)
    for name in ('connect_timeout', 'request_timeout'):
        check_timeout(name, getattr(settings, name), positive=True)
    for name in ('reconnect_timeout', 'close_timeout'):
        check_timeout(name, getattr(settings, name))
    check_type('busy_poll', settings.busy_poll, int, float, None)
    if settings.busy_poll is not None and not 0 < settings.busy_poll <= BUSY_POLL_MAX:
        raise ArgumentError(
            f'busy_poll must be None, or above 0 and at most {BUSY_POLL_MAX} seconds, not'
            f' {number_text(settings.busy_poll)}'
        )
    for name, least in (('heartbeat', 1), ('frame_max', FRAME_MIN)):
        if getattr(settings, name) is not None:
            check_integer(name, getattr(settings, name), least, 2**32 - 1)
    check_type('load_balancer', settings.load_balancer, bool)
    check_type('server_hostname', settings.server_hostname, str, None)
    if settings.server_hostname and any(item.ssl is None for item in settings.endpoints):
        raise URIError('server_hostname requires URIs with TLS: rabbitmq-stream+tls://')
    if settings.resolve is not None:
        if not callable(settings.resolve):
            raise ArgumentTypeError(
                f'resolve must be a function, not {type(settings.resolve).__name__}'
            )
        if settings.load_balancer:
            raise ArgumentError(
                'pass either resolve or load_balancer: with a load balancer, the client never uses'
                ' the addresses of nodes'
            )
    check_backoff(settings.backoff)
    for name in ('publishers_per_connection', 'subscriptions_per_connection'):
        check_integer(name, getattr(settings, name), 1, IDS)
    check_client_properties(settings.client_properties)
    return settings


def check_backoff(backoff: tuple[Any, ...]) -> None:
    check_type('backoff', backoff, tuple)
    if backoff:
        if len(backoff) != 2:
            raise ArgumentError('backoff must be two numbers: the first and the longest delay')
        for seconds in backoff:
            check_type('backoff', seconds, int, float)
        if not 0 < backoff[0] <= backoff[1] < float('inf'):
            raise ArgumentError(
                f'backoff must be 0 < first <= longest seconds, not {number_text(backoff)}'
            )


def check_client_properties(properties: Mapping[str, str]) -> None:
    check_type('client_properties', properties, Mapping)
    for name, text in properties.items():
        check_type('a client property', name, str)
        check_type(f'client property {name!r}', text, str)
        if name in ('connection_name', 'product', 'version', 'platform'):
            raise ArgumentError(
                f'client property {name!r} is set by RbFly'
                + ('; pass connection_name' if name == 'connection_name' else '')
            )
    size = sum(len(commands.string(part)) for item in properties.items() for part in item)
    if size > PROPERTIES_MAX:
        raise ArgumentError(f'client_properties have {size} bytes, more than {PROPERTIES_MAX}')


def check_tracing(tracing: object) -> None:
    """Check that an argument can make the spans of a client."""
    if tracing is not None and not hasattr(tracing, 'publisher_class'):
        raise ArgumentTypeError(
            f'tracing must be what rbfly.otel.tracing() returns, not {type(tracing).__name__}'
        )


def stream_arguments(
    max_length_bytes: int | None,
    max_age: datetime.timedelta | None,
    segment_size: int | None,
    initial_cluster_size: int | None,
    leader_locator: str | None,
    filter_size: int | None,
    initial_offset: int | None,
    raw: Mapping[str, str] | None,
) -> dict[str, str]:
    """Check the arguments of a stream, and convert them for the broker.

    :param raw: further arguments in the broker's form.
    """
    limits = [
        ('max_length_bytes', max_length_bytes, 'max-length-bytes', 1, 2**63 - 1),
        ('segment_size', segment_size, 'stream-max-segment-size-bytes', 1, SEGMENT_SIZE_MAX),
        ('initial_cluster_size', initial_cluster_size, 'initial-cluster-size', 1, 2**31 - 1),
        ('filter_size', filter_size, 'stream-filter-size-bytes', 16, 255),
        ('initial_offset', initial_offset, 'stream-initial-offset', 0, 2**63 - 1),
    ]
    arguments: dict[str, str] = {}
    for name, value, key, low, high in limits:
        if value is not None:
            check_integer(name, value, low, high)
            arguments[key] = str(value)
    if max_age is not None:
        check_type('max_age', max_age, datetime.timedelta)
        seconds = max_age // datetime.timedelta(seconds=1)
        if seconds < 1 or max_age != datetime.timedelta(seconds=seconds):
            raise ArgumentError(f'max_age must be one or more whole seconds, not {max_age}')
        arguments['max-age'] = f'{seconds}s'
    check_type('leader_locator', leader_locator, str, None)
    if leader_locator is not None:
        check_choice('leader_locator', leader_locator, 'client-local', 'balanced')
        arguments['queue-leader-locator'] = leader_locator
    check_type('arguments', raw, Mapping, None)
    for key, text in (raw or {}).items():
        check_type('an argument', key, str)
        check_type(f'argument {key!r}', text, str)
        commands.string_map({key: text})  # raises ArgumentError
        if key in arguments:
            raise ArgumentError(
                f'argument {key!r} is passed twice: as {arguments[key]!r} and {text!r}'
            )
    return {**arguments, **(raw or {})}


def exists_differently(stream: str, arguments: Mapping[str, str]) -> str:
    """Return the text of the error for a stream that was created with other arguments.

    The protocol does not report the arguments of a stream.

    :param arguments: the arguments requested, from `stream_arguments`.
    """
    requested = ', '.join(f'{key}={value}' for key, value in arguments.items()) or 'none'
    return (
        f'stream {stream!r} exists with other arguments than requested ({requested}): pass the'
        ' arguments that it was created with, which `rabbitmqctl list_queues name arguments` shows,'
        f' or delete the stream first (code 0x{ResponseCode.PRECONDITION_FAILED:02x})'
    )


def check_choice(name: str, value: object, *choices: str) -> None:
    """Check that an argument is one of several strings."""
    if value not in choices:
        *first, last = map(repr, choices)
        raise ArgumentError(f'{name} must be {", ".join(first)} or {last}, not {value!r}')


def check_filter(filter: MessageFilter) -> None:
    if not callable(filter.extract):
        raise ArgumentTypeError('extract of a MessageFilter must be callable')
    if not isinstance(filter.values, frozenset):
        raise ArgumentTypeError(
            f'values of a MessageFilter must be a set of str, not {type(filter.values).__name__}'
        )
    for value in filter.values:
        check_type('a filter value', value, str)
    if not (filter.values or filter.match_unfiltered):
        raise ArgumentError('a MessageFilter without values selects no message')
    commands.string_map(filter.properties())


def check_until(until: object, start: Offset | OffsetSource) -> None:
    """Check where a subscription ends."""
    if isinstance(until, int | float):
        number = number_text(until)
        raise ArgumentTypeError(
            f'until={number} may be an offset or a time: pass Offset.offset({number}) or'
            f' Offset.timestamp({number})'
        )
    check_type('until', until, str, Offset, datetime.datetime, None)
    if isinstance(until, str) and until != 'now':
        raise ArgumentError(f"until must be 'now', an Offset or a datetime, not {until!r}")
    bounds = (OffsetType.OFFSET, OffsetType.TIMESTAMP)
    if isinstance(until, Offset) and until.type not in bounds:
        raise ArgumentError(
            f"until must be 'now', Offset.offset(...) or Offset.timestamp(...), not {until!r}"
        )
    ends_now = until == 'now' or (isinstance(until, Offset) and until.type == OffsetType.TIMESTAMP)
    if ends_now and start == Offset.NEXT:
        raise ArgumentError(
            f'no message is published from now on and before until={until!r}: pass another'
            ' offset than Offset.NEXT, such as offset=Offset.FIRST'
        )


def instead_of(start: int | str | datetime.datetime) -> str:
    """Return what to pass instead of a value that is not an offset."""
    if isinstance(start, datetime.datetime):
        return 'pass Offset.timestamp(time)'
    if isinstance(start, int):
        return f'pass Offset.offset({number_text(start)})'
    if start.upper() in ('FIRST', 'LAST', 'NEXT'):
        return f'pass Offset.{start.upper()}'
    return f'pass Offset.reference({start!r}) to start after a stored offset'


def check_starts(offset: object, until: object, super_stream: bool) -> None:
    """Check where a subscription starts, and where it ends."""
    starts: dict[str, Any] = {'offset': offset}
    if isinstance(offset, Mapping):
        if not super_stream:
            raise ArgumentTypeError('only a super stream takes an offset for each partition')
        starts = {f'offset of {name!r}': start for name, start in offset.items()}
        for name in offset:
            check_stream(name)
    types: tuple[Any, ...] = (Offset, Callable)
    if super_stream and 'offset' in starts:
        types = (Offset, Callable, Mapping)
    for name, start in starts.items():
        if isinstance(start, int | str | datetime.datetime) and not isinstance(start, bool):
            expected = ' or '.join(item.__name__ for item in types)
            found = type(start).__name__
            raise ArgumentTypeError(f'{name} must be {expected}, not {found}: {instead_of(start)}')
        check_type(name, start, *types)
        check_until(until, start)
        if isinstance(start, Offset) and start.type == OffsetType.REFERENCE:
            commands.reference(str(start.value), 'offset reference')


def check_member_start(start: Offset) -> None:
    """Check where a member of a group starts: the same for whichever member becomes active."""
    if OffsetType.LAST_MESSAGES in (start.type, start.default and start.default.type):
        raise ArgumentError('a member of a group cannot start at Offset.last_messages(...)')


def check_codec(codec: object, amqp: bool) -> None:
    """Check an argument `codec`, which needs AMQP 1.0 around the bytes of a body."""
    if codec is not None:
        from ..amqp.body_codec import Codec

        check_type('codec', codec, Codec)
        if not amqp:
            raise ArgumentError('a codec is for bodies of AMQP 1.0: omit amqp=False')


def check_publisher(info: PublisherInfo) -> PublisherInfo:
    """Check the arguments of a publisher, and return them."""
    check_stream(info.stream)
    check_type('name', info.name, str)
    commands.reference(info.name, 'publisher name')
    check_integer('max_unconfirmed', info.max_unconfirmed, 1, 2**31 - 1)
    check_codec(info.codec, info.amqp)
    size = info.sub_entry_size
    if size is not None:
        check_integer('sub_entry_size', size, 1, SUB_ENTRY_MAX)
        if size > info.max_unconfirmed:
            raise ArgumentError('max_unconfirmed must be at least sub_entry_size')
    compressor(info.compression)  # raises CompressionError if its library is missing
    if info.filter_extract is not None and not callable(info.filter_extract):
        raise ArgumentTypeError('filter_extract must be callable')
    if size is not None and info.filter_extract is not None:
        raise ArgumentError(
            'messages in sub-entries cannot have filter values:'
            ' use either sub_entry_size or filter_extract'
        )
    if info.compression is not Compression.NONE and size is None:
        raise ArgumentError('compression requires sub_entry_size: only sub-entries are compressed')
    return info
