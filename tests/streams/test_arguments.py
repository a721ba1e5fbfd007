"""The call that receives a wrong argument raises RbFly's own TypeError or ValueError."""

import asyncio
import copy
import gc
import pickle
import ssl
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.checks import check_folder, check_timeout
from rbfly.streams.error import ArgumentError, ArgumentTypeError
from tests.fake_broker import FakeBroker
from tests.inside import cluster_of, core_of
from tests.super_streams import subscribe_to

URI = 'rabbitmq-stream://localhost:1/'


@pytest.mark.parametrize(
    'argument',
    [
        {'heartbeat': 1.5},
        {'heartbeat': '5'},
        {'heartbeat': True},
        {'frame_max': 4096.0},
        {'connection_name': 5},
        {'auth_mechanism': 'PLAIN'},
        {'auth_mechanism': ''},
        {'ssl': True},
        {'connect_timeout': '5'},
        {'connect_timeout': True},
        {'connect_timeout': timedelta(1)},
        {'reconnect_timeout': '5'},
        {'request_timeout': '1'},
        {'close_timeout': True},
        {'load_balancer': 'no'},
        {'load_balancer': None},
    ],
    ids=repr,
)
def test_client_refuses_argument_of_wrong_type(argument: dict[str, Any]) -> None:
    with pytest.raises(ArgumentTypeError, match=next(iter(argument))):
        rbs.streams_client(URI, **argument)


@pytest.mark.parametrize('uri', [5, None, b'rabbitmq-stream://localhost/', [5], [URI, None]])
def test_client_refuses_uri_of_wrong_type(uri: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r'(?i)uri must be str') as caught:
        rbs.streams_client(uri)
    if isinstance(uri, bytes):
        assert str(caught.value) == 'uri must be str, not bytes'


def test_client_refuses_a_list_that_mixes_tls_and_plain_uris() -> None:
    for uris in ([URI, 'rabbitmq-stream+tls://h'], ['rabbitmq-stream+tls://h', URI]):
        with pytest.raises(rbs.URIError, match='all use TLS, or all use no TLS'):
            rbs.streams_client(uris)
    rbs.streams_client(['rabbitmq-stream+tls://h', 'rabbitmq-stream+tls://g'])


def test_group_with_an_end_is_refused_before_its_start_is_checked() -> None:
    with pytest.raises(ArgumentError, match='a group has no end'):
        rbs.streams_client(URI).subscribe('s', group='g', until='now')


@pytest.mark.parametrize('start', [5, {'p': 5}], ids=repr)
def test_number_as_offset_names_the_class(start: Any) -> None:
    client: Any = rbs.streams_client(URI)
    with pytest.raises(ArgumentTypeError, match=r'not int: pass Offset.offset\(5\)$'):
        subscribe_to(client, 's', offset=start, super_stream=isinstance(start, dict))


@pytest.mark.parametrize('infos', [5, URI, [URI], [None]], ids=repr)
def test_client_refuses_wrong_connection_info(infos: Any) -> None:
    with pytest.raises(ArgumentTypeError, match='connection_info'):
        rbs.StreamsClient(infos)


@pytest.mark.parametrize(
    'argument',
    [
        {'heartbeat': -1},
        {'heartbeat': 0},
        {'heartbeat': 2**32},
        {'frame_max': 0},
        {'frame_max': 1},
        {'frame_max': 511},
        {'frame_max': -4096},
        {'frame_max': 2**32},
        {'connection_name': 'x' * 65535},
        {'connection_name': '\ud800'},
        {'connect_timeout': -1},
        {'connect_timeout': 0},
        {'reconnect_timeout': float('nan')},
        {'reconnect_timeout': float('inf')},
        {'request_timeout': -1},
        {'request_timeout': 0.0},
        {'close_timeout': float('nan')},
    ],
    ids=lambda argument: next(iter(argument)),
)
def test_client_refuses_argument_out_of_range(argument: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        rbs.streams_client(URI, **argument)


@pytest.mark.parametrize(
    'argument',
    [
        {},
        {'heartbeat': None, 'frame_max': None, 'busy_poll': None},
        {'heartbeat': 1, 'busy_poll': 0.1},
        {'heartbeat': 2**32 - 1, 'frame_max': 2**32 - 1},
        {'frame_max': 512},
        {'connect_timeout': None, 'reconnect_timeout': 0, 'close_timeout': 0},
        {'request_timeout': None, 'close_timeout': None},
        {'connect_timeout': 0.5, 'reconnect_timeout': 10**6},
        {'auth_mechanism': None, 'connection_name': None},
        {'auth_mechanism': rbs.AuthMechanism.EXTERNAL, 'ssl': None},
    ],
)
def test_client_accepts_argument_in_range(argument: dict[str, Any]) -> None:
    assert not rbs.streams_client((URI, URI), **argument).connected


def test_ssl_context_is_the_second_argument() -> None:
    rbs.streams_client('rabbitmq-stream+tls://localhost/', ssl.create_default_context())


@pytest.mark.parametrize('value', [None, 0, 0.0, 1, 2.5])
def test_valid_timeout(value: float | None) -> None:
    check_timeout('timeout', value)


@pytest.mark.parametrize('value', ['1', True, [1], 1j])
def test_timeout_of_wrong_type(value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r'^timeout must be int or float or None, not'):
        check_timeout('timeout', value)


@pytest.mark.parametrize('value', [-1, -0.1, float('nan'), float('inf'), 10**400])
def test_timeout_out_of_range(value: float) -> None:
    with pytest.raises(ArgumentError, match=f'^timeout must be 0 or more seconds, not {value}'):
        check_timeout('timeout', value)


Call = Callable[[rbs.StreamsClient], Awaitable[Any]]
WRONG_TYPES: list[Call] = [
    lambda client: client.create_stream('s', max_length_bytes='1'),  # type: ignore[arg-type]
    lambda client: client.create_stream('s', max_length_bytes=True),
    lambda client: client.create_stream('s', max_age=5),  # type: ignore[arg-type]
    lambda client: client.create_stream('s', segment_size=1.5),  # type: ignore[arg-type]
    lambda client: client.create_stream('s', leader_locator=1),  # type: ignore[arg-type]
    lambda client: client.write_offset('s', 'r', 1.5),  # type: ignore[arg-type]
    lambda client: client.write_offset('s', 'r', True),
    lambda client: client.write_offset('s', 'r', '1'),  # type: ignore[arg-type]
    lambda client: client.write_offset('s', 5, 1),  # type: ignore[arg-type]
    lambda client: client.read_offset('s', None),  # type: ignore[arg-type]
    lambda client: client.references(None),  # type: ignore[arg-type]
    lambda client: client.super_stream(5).lag('r'),  # type: ignore[arg-type]
    lambda client: client.super_stream('s').lag(5),  # type: ignore[call-overload]
    lambda client: client.lag(5, 'r'),  # type: ignore[call-overload]
    lambda client: client.publisher('s', name=5).__aenter__(),  # type: ignore[arg-type]
    lambda client: client.publisher('s', max_unconfirmed=1.5).__aenter__(),  # type: ignore[arg-type]
]


@pytest.mark.parametrize('call', WRONG_TYPES)
async def test_wrong_type_is_refused_before_connecting(call: Call) -> None:
    with pytest.raises(ArgumentTypeError):
        await call(rbs.streams_client(URI, connect_timeout=0.1))


OUT_OF_RANGE: list[Call] = [
    lambda client: client.write_offset('s', 'x' * 256, 1),
    lambda client: client.read_offset('s', 'x' * 256),
    lambda client: client.publisher('s', name='x' * 256).__aenter__(),
]


@pytest.mark.parametrize('call', OUT_OF_RANGE)
async def test_long_reference_is_refused_before_connecting(call: Call) -> None:
    with pytest.raises(ArgumentError, match='longer than 255 bytes'):
        await call(rbs.streams_client(URI, connect_timeout=0.1))


# As the command line and the environment have them, if they are not UTF-8.
NO_UNICODE: list[Call] = [
    lambda client: client.create_stream('\udcff'),
    lambda client: client.create_stream('s', arguments={'x': '\udcff'}),
    lambda client: client.super_stream('s').create(binding_keys=['\udcff']),
    lambda client: client.delete_stream('\udcff'),
    lambda client: client.stream_exists('\udcff'),
    lambda client: client.super_stream('\udcff').partitions(),
    lambda client: client.publisher('\udcff').__aenter__(),
    lambda client: client.subscribe('\udcff').open(),
]


@pytest.mark.parametrize('call', NO_UNICODE)
async def test_text_that_is_not_unicode_is_refused_before_connecting(call: Call) -> None:
    with pytest.raises(ArgumentError, match='is not valid Unicode'):
        await call(rbs.streams_client(URI, connect_timeout=0.1))


async def test_write_offset_refuses_offset_out_of_range() -> None:
    for value in (-1, 2**64):
        with pytest.raises(ArgumentError, match=f'value must be from 0 to .*, not {value}'):
            await rbs.streams_client(URI, connect_timeout=0.1).write_offset('s', 'r', value)


def test_number_out_of_range_is_a_value_error() -> None:
    for error in (ArgumentError, ValueError, OverflowError):
        with pytest.raises(error):
            rbs.Offset.offset(-1)


HUGE = 10**5000  # Python refuses to write it


@pytest.mark.parametrize(
    ('call', 'error'),
    [
        (lambda: rbs.Offset.offset(HUGE), OverflowError),
        (lambda: rbs.Offset.timestamp(HUGE), OverflowError),
        (lambda: rbs.streams_client(URI, heartbeat=HUGE), ArgumentError),
        (lambda: rbs.streams_client(URI, connect_timeout=HUGE), ArgumentError),
        (lambda: rbs.streams_client(URI, busy_poll=HUGE), ArgumentError),
        (lambda: rbs.streams_client(URI, backoff=(HUGE, 1)), ArgumentError),
        (lambda: rbs.streams_client(URI).subscribe('s', until=HUGE), ArgumentTypeError),  # type: ignore[call-overload]
        (lambda: rbs.streams_client(URI).subscribe('s', offset=HUGE), ArgumentTypeError),  # type: ignore[call-overload]
    ],
)
def test_number_with_too_many_digits(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error, match='a number with too many digits'):
        call()


def test_filter_accepts_values_from_a_generator() -> None:
    wanted = rbs.MessageFilter(str, (value for value in 'ab'))  # type: ignore[arg-type]
    for _ in range(2):
        rbs.streams_client(URI).subscribe('s', filter=wanted)
        assert wanted.values == {'a', 'b'}
        assert wanted.properties() == {'filter.0': 'a', 'filter.1': 'b'}


def test_filter_selects_something() -> None:
    client = rbs.streams_client(URI)
    with pytest.raises(ArgumentError, match='a MessageFilter without values selects no message'):
        client.subscribe('s', filter=rbs.MessageFilter(str, set()))
    client.subscribe('s', filter=rbs.MessageFilter(str, set(), match_unfiltered=True))


@pytest.mark.parametrize('values', [['a', ['b']], [b'a'], 5, 'ab', b'ab'])
def test_filter_refuses_values_of_wrong_type(values: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r'(?i)filter'):
        rbs.streams_client(URI).subscribe('s', filter=rbs.MessageFilter(str, values))


@pytest.mark.parametrize(
    'argument',
    [
        {'group': b'g'},
        {'group': True},
        {'commit': 1},
        {'commit': True},
        {'commit': rbs.OffsetTracking},
    ],
    ids=repr,
)
def test_group_refuses_argument_of_wrong_type(argument: dict[str, Any]) -> None:
    with pytest.raises(ArgumentTypeError, match=next(iter(argument))):
        subscribe_to(rbs.streams_client(URI), 's', **{'group': 'g'} | argument)


@pytest.mark.parametrize(
    'argument',
    [
        {'name': b'g'},
        {'handover_timeout': '3'},
        {'handover_timeout': None},
        {'handover_timeout': True},
        {'handover_timeout': timedelta(seconds=3)},
        {'stranded_after': '3'},
        {'stranded_after': False},
        {'stranded_after': timedelta(seconds=3)},
        {'on_revoke': 'flush'},
    ],
    ids=repr,
)
def test_settings_of_a_group_refuse_argument_of_wrong_type(argument: dict[str, Any]) -> None:
    with pytest.raises(ArgumentTypeError, match=r'group|handover_timeout|stranded_after|on_revoke'):
        rbs.Group(**{'name': 'g'} | argument)


@pytest.mark.parametrize(
    ('argument', 'text'),
    [
        *(
            ({'handover_timeout': value}, f'above 0 and at most 50 seconds, .*, not {value}$')
            for value in (0, -1, 50.1, float('inf'), float('nan'))
        ),
        *(
            ({'stranded_after': value}, 'stranded_after must be .*seconds')
            for value in (0, -1, float('inf'), float('nan'))
        ),
    ],
    ids=lambda item: repr(item) if isinstance(item, dict) else '',
)
def test_settings_of_a_group_refuse_argument_out_of_range(
    argument: dict[str, Any], text: str
) -> None:
    with pytest.raises(ArgumentError, match=text):
        rbs.Group('g', **argument)


ASK: Any = print  # a function whose repr is the same in each process


@pytest.mark.parametrize(
    ('argument', 'text'),
    [
        ({'group': ''}, 'group must not be empty'),
        ({'group': 'x' * 256}, "group 'x+...' is longer than 255 bytes"),
        ({'group': '\ud800'}, 'not valid Unicode'),
        *(
            ({'group': rbs.Group('g', stranded_after=value)}, 'must be above 5 seconds')
            for value in (0.001, 5)
        ),
        (
            {'group': rbs.Group('g', stranded_after=1), 'commit': 'manual'},
            'stranded_after must be above 1 seconds, not 1',
        ),
        *(
            ({'group': rbs.Group('g', stranded_after=60)} | other, 'looks at the stored offset')
            for other in ({'commit': 'off'}, {'offset': ASK})
        ),
        ({'commit': 'never'}, "commit must be 'auto', 'manual' or 'off', not 'never'"),
        ({'commit': rbs.OffsetTracking('h')}, "'g' stores its offset .* not under 'h'"),
        ({'commit': rbs.OffsetTracking('')}, "'g' stores its offset .* not under ''"),
        ({'offset': rbs.Offset.reference('h')}, "'g' starts after the offset .* not under 'h'"),
        (
            {'offset': {'p': rbs.Offset.reference('h')}, 'super_stream': True},
            "'g' starts after the offset .* not under 'h'",
        ),
        ({'offset': rbs.Offset.FIRST, 'until': 'now'}, 'a group has no end'),
        *(
            ({'group': None, 'commit': value}, 'needs the name under which to store')
            for value in ('auto', 'manual', rbs.OffsetTracking())
        ),
    ],
    ids=lambda item: repr(item) if isinstance(item, dict) else '',
)
def test_group_refuses_argument_out_of_range(argument: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        subscribe_to(rbs.streams_client(URI), 's', **{'group': 'g'} | argument)


@pytest.mark.parametrize(
    'argument',
    [
        {'group': 'x' * 255},
        {'group': rbs.Group('g', handover_timeout=50)},
        {'group': rbs.Group('g', stranded_after=60, on_revoke=ASK)},
        {'commit': 'off'},
        {'commit': None},
        {'commit': rbs.OffsetTracking('g')},
        {'commit': rbs.OffsetTracking(manual=True)},
        {'commit': 'auto', 'offset': ASK},
        {'offset': rbs.Offset.reference('g')},
        {'group': None, 'offset': rbs.Offset.reference('g'), 'commit': 'auto'},
        {'group': None, 'commit': 'off'},
    ],
    ids=repr,
)
def test_group_accepts_argument(argument: dict[str, Any]) -> None:
    subscribe_to(rbs.streams_client(URI), 's', **{'group': 'g'} | argument)


@pytest.mark.parametrize('make', [copy.copy, copy.deepcopy, pickle.dumps])
async def test_client_cannot_be_copied(
    make: Callable[[Any], Any], recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, 'unraisablehook', unraisable.append)
    client = rbs.streams_client(URI)
    for item in [client] if make is copy.copy else [client, client.publisher('s')]:
        with pytest.raises(ArgumentTypeError, match='cannot be copied or pickled'):
            make(item)
    gc.collect()
    assert not unraisable
    assert not recwarn.list


async def test_virtual_host_with_a_long_name() -> None:
    async with FakeBroker() as fake, rbs.streams_client(fake.uri + 'v' * 500) as client:
        text = 'virtual host has 500 characters: .* no stream in a virtual host with more than 233$'
        with pytest.raises(ArgumentError, match=text):
            await client.create_stream('orders')
    check_folder('s', ['v' * 233])
    with pytest.raises(ArgumentError, match=r'more than 233$'):
        check_folder('s', ['v' * 234])


async def test_running_loop_is_looked_up_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries such as trio-asyncio replace the function, also after RbFly was imported."""
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri) as client,
        client.publisher('orders') as publisher,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, '_get_running_loop', lambda: None)
            for owner in (cluster_of(client), core_of(publisher)):
                with pytest.raises(rbs.EventLoopError):
                    owner.check_loop()
