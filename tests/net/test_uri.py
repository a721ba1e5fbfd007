"""URIs: every part is percent-decoded, and the password is never shown."""

import ssl
from dataclasses import replace

import pytest

from rbfly.error import RbFlyError
from rbfly.net.uri import ConnectionInfo, Scheme, parse_uri
from rbfly.streams.error import ArgumentTypeError, URIError

SECRET = 's3cr3t'


def fields(info: ConnectionInfo) -> tuple[str, int, str, str, str]:
    return info.host, info.port, info.virtual_host, info.username, info.password


@pytest.mark.parametrize(
    ('uri', 'expected'),
    [
        ('rabbitmq-stream://', ('localhost', 5552, '/', 'guest', 'guest')),
        ('rabbitmq-stream:///', ('localhost', 5552, '/', 'guest', 'guest')),
        ('rabbitmq-stream://host', ('host', 5552, '/', 'guest', 'guest')),
        ('rabbitmq-stream://host/', ('host', 5552, '/', 'guest', 'guest')),
        ('rabbitmq-stream://host//', ('host', 5552, '/', 'guest', 'guest')),
        ('rabbitmq-stream://host:', ('host', 5552, '/', 'guest', 'guest')),
        ('rabbitmq-stream://:1234', ('localhost', 1234, '/', 'guest', 'guest')),
        ('rabbitmq-stream://host:65535/', ('host', 65535, '/', 'guest', 'guest')),
        ('rabbitmq-stream://HOST/Vhost', ('host', 5552, 'Vhost', 'guest', 'guest')),
        ('RabbitMQ-Stream://host', ('host', 5552, '/', 'guest', 'guest')),
        ('rabbitmq-stream://u:p@host:1/v', ('host', 1, 'v', 'u', 'p')),
        ('rabbitmq-stream://u@host', ('host', 5552, '/', 'u', 'guest')),
        ('rabbitmq-stream://u:@host', ('host', 5552, '/', 'u', '')),
        ('rabbitmq-stream://u:p:q@host', ('host', 5552, '/', 'u', 'p:q')),
        ('rabbitmq-stream://u:p@q@host', ('host', 5552, '/', 'u', 'p@q')),
        ('rabbitmq-stream://u:p@', ('localhost', 5552, '/', 'u', 'p')),
    ],
)
def test_parts_and_defaults(uri: str, expected: tuple[str, int, str, str, str]) -> None:
    info = parse_uri(uri)
    assert fields(info) == expected
    assert info.scheme is Scheme.PLAIN
    assert info.ssl is None


@pytest.mark.parametrize(
    ('path', 'vhost'),
    [
        ('/%2f', '/'),
        ('/%2F', '/'),
        ('/a/b', 'a/b'),
        ('/a%2Fb', 'a/b'),
        ('/%2Fa', '/a'),
        ('/a%20b', 'a b'),
        ('/a+b', 'a+b'),
        ('/%23%3F%40', '#?@'),
        ('/za%C5%BC%C3%B3%C5%82%C4%87', 'zażółć'),
        ('/zażółć', 'zażółć'),
        ('/%2525', '%25'),
    ],
)
def test_virtual_hosts(path: str, vhost: str) -> None:
    assert parse_uri(f'rabbitmq-stream://host{path}').virtual_host == vhost


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('gu%65st', 'guest'),
        ('%40%3A%2F%23%3F%25', '@:/#?%'),
        ('a+b', 'a+b'),
        ('p%C3%A4ss', 'päss'),
        ('päss', 'päss'),
        ('%F0%9F%98%80', '😀'),
        ('[x]', '[x]'),
    ],
)
def test_user_and_password_are_decoded(text: str, expected: str) -> None:
    if '[' in text:
        text = text.replace('[', '%5B').replace(']', '%5D')
    info = parse_uri(f'rabbitmq-stream://{text}:{text}@host')
    assert (info.username, info.password, info.host) == (expected, expected, 'host')


@pytest.mark.parametrize(
    ('netloc', 'host', 'port', 'shown'),
    [
        ('[::1]', '::1', 5552, '[::1]:5552'),
        ('[::1]:77', '::1', 77, '[::1]:77'),
        ('u:p@[2001:db8::1]:77', '2001:db8::1', 77, '[2001:db8::1]:77'),
        ('[fe80::1%25eth0]:77', 'fe80::1%eth0', 77, '[fe80::1%eth0]:77'),
    ],
)
def test_ipv6(netloc: str, host: str, port: int, shown: str) -> None:
    info = parse_uri(f'rabbitmq-stream://{netloc}/')
    assert (info.host, info.port) == (host, port)
    assert str(info) == f'rabbitmq-stream://{shown}'


# -- TLS


def test_tls_has_its_own_port_and_verifies_certificates() -> None:
    info = parse_uri('rabbitmq-stream+tls://host')
    assert info.scheme is Scheme.TLS
    assert info.port == 5551
    assert info.ssl is not None
    assert info.ssl.verify_mode == ssl.CERT_REQUIRED
    assert info.ssl.check_hostname


def test_explicit_context() -> None:
    context = ssl.create_default_context()
    assert parse_uri('rabbitmq-stream+tls://host:1', context).ssl is context


def test_context_requires_the_tls_scheme() -> None:
    with pytest.raises(URIError, match='rabbitmq-stream\\+tls'):
        parse_uri('rabbitmq-stream://host', ssl.create_default_context())


# -- errors


@pytest.mark.parametrize(
    'uri',
    [
        '',
        'host',
        'host:5552',
        '//host',
        'amqp://host',
        'http://host',
        'rabbitmq-streams://host',
        'rabbitmq-stream+ssl://host',
        'rabbitmq-stream',
        'rabbitmq-stream:host',
        'rabbitmq-stream:/host',
        'rabbitmq-stream://host:0',
        'rabbitmq-stream://host:65536',
        'rabbitmq-stream://host:-1',
        'rabbitmq-stream://host:x',
        'rabbitmq-stream://host:５',
        'rabbitmq-stream://host:1:2',
        'rabbitmq-stream://[::1',
        'rabbitmq-stream://::1]',
        'rabbitmq-stream://[nonsense]',
        'rabbitmq-stream://host/#',
        'rabbitmq-stream://host/v#x',
        'rabbitmq-stream://ho st',
        'rabbitmq-stream://host/a b',
        ' rabbitmq-stream://host',
        'rabbitmq-stream://host\n',
        'rabbitmq-stream://ho\tst',
        'rabbitmq-stream://host/%ff',
        'rabbitmq-stream://%ff@host',
        'rabbitmq-stream://u:%ff@host',
        'rabbitmq-stream://%ff',
        'rabbitmq-stream://host/%00',
        'rabbitmq-stream://u%00:p@host',
        'rabbitmq-stream://u:p%00@host',
        'rabbitmq-stream://u:p\x00@host',
    ],
)
def test_malformed_uris(uri: str) -> None:
    with pytest.raises(URIError):
        parse_uri(uri)


@pytest.mark.parametrize('uri', [None, 5, b'rabbitmq-stream://host'])
def test_uri_of_a_wrong_type(uri: object) -> None:
    with pytest.raises(ArgumentTypeError, match='must be str'):
        parse_uri(uri)  # type: ignore[arg-type]


def test_connection_info_does_not_show_the_password() -> None:
    info = parse_uri(f'rabbitmq-stream+tls://user:{SECRET}@host')
    assert info.password == SECRET
    for text in (repr(info), str(info), f'{replace(info, port=7)}', repr(replace(info, port=7))):
        assert SECRET not in text
    assert str(info) == 'rabbitmq-stream+tls://host:5551'


@pytest.mark.parametrize(
    'uri',
    [
        f'rabbitmq-stream://user:{SECRET}',
        f'rabbitmq-stream://user:{SECRET}/',
        f'rabbitmq-stream:user:{SECRET}',
        f'rabbitmq-stream:user:{SECRET}@host',
        f'rabbitmq-stream:/user:{SECRET}@host',
        f'rabbitmq://user:{SECRET}@host',
        f'user:{SECRET}@host',
        f'//user:{SECRET}@host',
        f'{SECRET}@host',
        f'rabbitmq-stream://user:{SECRET}@host:x',
        f'rabbitmq-stream://user:{SECRET}@host:0',
        f'rabbitmq-stream://user:{SECRET}@host:99999',
        f'rabbitmq-stream://user:{SECRET}/x@host',
        f'rabbitmq-stream://user:1/{SECRET}@host',
        f'rabbitmq-stream://user:{SECRET}?x@host',
        f'rabbitmq-stream://user:1?{SECRET}@host',
        f'rabbitmq-stream://user:{SECRET}#x@host',
        f'rabbitmq-stream://user:1#{SECRET}@host',
        f'rabbitmq-stream://user:x@{SECRET}/y@host',
        f'rabbitmq-stream://user:x@y/{SECRET}@host/v',
        f'rabbitmq-stream://user:1?{SECRET}',
        f'{SECRET}:x@host',
        f'rabbitmq-stream://user:{SECRET}[x@host',
        f'rabbitmq-stream://user:[{SECRET}]@host',
        f'rabbitmq-stream://user:[{SECRET}@host',
        f'rabbitmq-stream://user:{SECRET}%ff@host',
        f'rabbitmq-stream://user:{SECRET}%00@host',
        f'rabbitmq-stream://user:{SECRET}\ud800@host',
        f'rabbitmq-stream://user:{SECRET} x@host',
        f'rabbitmq-stream://user:{SECRET}@host/v#x',
        f'rabbitmq-stream://user:{SECRET}℀@host',
        f'rabbitmq-stream://user:{SECRET}℀x:y@host',
        f'rabbitmq-stream://user:x@{SECRET}@host:1x',
    ],
)
def test_errors_do_not_show_the_password(uri: str) -> None:
    with pytest.raises(URIError) as caught:
        parse_uri(uri)
    error = caught.value
    assert SECRET not in repr(error)
    assert SECRET not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None


def test_errors_are_value_errors() -> None:
    assert issubclass(URIError, RbFlyError)
    assert issubclass(URIError, ValueError)


@pytest.mark.parametrize(
    ('query', 'named'),
    [
        ('heartbeat=5', "'heartbeat'"),
        ('heartbeat=5&frame_max=1', "'heartbeat' and 'frame_max'"),
        ('heartbeat=5&', "'heartbeat'"),
        ('x', 'them'),
        ('', 'them'),
    ],
)
def test_query_is_refused(query: str, named: str) -> None:
    with pytest.raises(URIError, match=f'no parameters: pass {named} to streams_client'):
        parse_uri(f'rabbitmq-stream://host/v?{query}')


@pytest.mark.parametrize('uri', ['127.0.0.1:5552', 'localhost:5552', 'user:secret@host', ''])
def test_error_without_a_scheme_shows_an_example(uri: str) -> None:
    with pytest.raises(URIError, match=r'example rabbitmq-stream://guest:guest@127\.0\.0\.1:5552/'):
        parse_uri(uri)


@pytest.mark.parametrize('special', '/?#@')
@pytest.mark.parametrize('before', ['', '1', f'{SECRET}@'])
def test_part_of_a_password_is_never_taken_for_a_host(special: str, before: str) -> None:
    uri = f'rabbitmq-stream://user:{before}{special}{SECRET}@host/v'
    if special == '@':
        assert parse_uri(uri).host == 'host'
        return
    with pytest.raises(URIError) as caught:
        parse_uri(uri)
    assert SECRET not in str(caught.value)
