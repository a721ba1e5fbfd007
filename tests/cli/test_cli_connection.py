"""Options that name a broker, profiles, and errors of connections."""

import asyncio
import ssl
from pathlib import Path

import click
import pytest
import trustme

from brokers import RabbitMQ
from rbfly.cli.connection import Target
from rbfly.cli.lag import show_lag
from rbfly.cli.places import range_of
from rbfly.cli.tail import Wanted, tail
from rbfly.error import StreamConnectionError
from rbfly.testing import StreamBroker
from tests.command_line import rbfly

GONE = 'rabbitmq-stream://localhost:1'  # nobody listens there
SHORT = ('--connect-timeout', '2')  # a busy machine may take a second to find that out


@pytest.fixture
def profiles(tmp_path: Path, broker: RabbitMQ) -> Path:
    """A file whose default profile leads nowhere."""
    path = tmp_path / 'rbfly' / 'config.toml'
    path.parent.mkdir()
    path.write_text(
        f"""
default = 'gone'

[profiles.gone]
uri = '{GONE}'
connect-timeout = 2

[profiles.here]
uri = ['{GONE}', '{broker.uri}']
connect-timeout = 30

[profiles.tls]
uri = 'rabbitmq-stream+tls://localhost:1'
tls-ca = 'ca.pem'
"""
    )
    return path


def stats(*args: str, **variables: str) -> str:
    """Return what the command says about the stream `orders`, in one line."""
    done = rbfly('stream', 'stats', 'no-such-stream', *args, **variables)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    return line


HERE = 'rbfly stream stats: '  # the broker has answered
NOWHERE = 'rbfly: gave up after 2 s: rabbitmq-stream://localhost:1: '


def test_uri_stands_before_or_after_the_command(broker: RabbitMQ) -> None:
    assert stats('--uri', broker.uri).startswith(HERE)
    assert stats('--uri', broker.uri, RBFLY_URI=GONE).startswith(HERE)
    done = rbfly('--uri', broker.uri, 'stream', 'stats', 'no-such-stream', RBFLY_URI=GONE)
    assert done.stderr.startswith(HERE)


def test_several_uris(broker: RabbitMQ) -> None:
    assert stats('--uri', GONE, '--uri', broker.uri).startswith(HERE)
    assert stats(RBFLY_URI=f'{GONE} {broker.uri}').startswith(HERE)


def test_profiles(profiles: Path, broker: RabbitMQ) -> None:
    found = {'RBFLY_CONFIG': str(profiles)}
    assert stats(**found).startswith(NOWHERE)
    assert stats('--profile', 'here', **found).startswith(HERE)
    assert stats(RBFLY_PROFILE='here', **found).startswith(HERE)
    assert stats('--uri', broker.uri, '--connect-timeout', '30', **found).startswith(HERE)
    # What stands on the command line counts more than the environment.
    assert stats('--profile', 'here', RBFLY_URI=GONE, **found).startswith(HERE)
    assert stats('--profile', 'gone', RBFLY_URI=broker.uri, **found).startswith(NOWHERE)


def test_profiles_are_in_the_folder_of_settings(profiles: Path) -> None:
    folder = str(profiles.parents[1])
    found = stats('--profile', 'here', RBFLY_CONFIG='', XDG_CONFIG_HOME=folder)
    assert found.startswith(HERE)


def test_files_of_a_profile_are_relative_to_it(profiles: Path) -> None:
    assert f'cannot read {profiles.parent / "ca.pem"}: ' in stats(
        '--profile', 'tls', RBFLY_CONFIG=str(profiles)
    )


def test_user_in_a_path_of_a_profile_is_missing(tmp_path: Path) -> None:
    path = tmp_path / 'config.toml'
    path.write_text('default = "here"\n[profiles.here]\ntls-ca = "~no-such-user/ca.pem"\n')
    line = stats(RBFLY_CONFIG=str(path))
    assert line.startswith(f'rbfly: cannot read {tmp_path}/~no-such-user/ca.pem: ')


MISTAKES = {
    '': "has no profile 'here'; it has: none",
    'default = 1': '`default` in ',
    'profiles = 1': '`profiles` in ',
    '[profiles]\nhere = 1': "profile 'here' in ",
    '[profiles.here]\nurl = "x"': "has 'url': it may have uri, tls-ca",
    '[profiles.here]\nuri = 5': "'uri' of profile 'here' in ",
    '[profiles.here]\nconnect-timeout = true': "'connect-timeout' of profile 'here' in ",
    'uri = "x"': "has 'uri': it may have `default` and tables `profiles.NAME`",
    '[profiles': 'cannot read ',
}


@pytest.mark.parametrize(('text', 'reason'), MISTAKES.items(), ids=MISTAKES)
def test_mistake_in_a_profile(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / 'config.toml'
    path.write_text(text)
    found = stats('--profile', 'here', RBFLY_CONFIG=str(path))
    assert reason in found
    assert str(path) in found


def test_file_of_the_environment_is_missing(tmp_path: Path) -> None:
    """The command does not connect to localhost instead."""
    path = tmp_path / 'config.toml'
    assert stats(RBFLY_CONFIG=str(path)).startswith(f'rbfly: cannot read {path}: ')


def test_profile_without_a_file(tmp_path: Path) -> None:
    line = stats('--profile', 'here', RBFLY_CONFIG='', XDG_CONFIG_HOME=str(tmp_path))
    path = tmp_path / 'rbfly' / 'config.toml'
    assert line == f"rbfly: there is no profile 'here': there is no file {path}"


def test_error_of_a_connection_is_one_line() -> None:
    line = stats('--uri', GONE, *SHORT)
    assert line.startswith(NOWHERE)
    assert line.endswith('; does a broker with the plugin rabbitmq_stream run there? (see --uri)')


def test_log() -> None:
    done = rbfly('stream', 'stats', 'orders', '--uri', GONE, *SHORT, '-v')
    assert '[rbfly stream stats] a call waits: ' in done.stderr


ERRORS = {
    'rabbitmq-stream://guest:wrong@{}/': 'check the user and the password of --uri',
    'rabbitmq-stream://{}/nowhere': 'check the virtual host of --uri, and the rights of the user',
    'http://{}/': 'see --uri',
}


@pytest.mark.parametrize(('uri', 'advice'), ERRORS.items(), ids=ERRORS)
def test_advice(broker: RabbitMQ, uri: str, advice: str) -> None:
    address = broker.uri.rpartition('@')[2].rstrip('/')
    assert stats('--uri', uri.format(address)).endswith(f'; {advice}')


def test_connections_are_named_after_the_command() -> None:
    events: list[str] = []
    with StreamBroker(on_event=events.append) as broker:
        rbfly('tail', 'orders', RBFLY_URI=broker.uri)
    assert any("'rbfly tail'" in event for event in events)


@pytest.mark.own_clock
async def test_command_ends_when_the_broker_has_gone() -> None:
    with click.Context(click.Command('lag')):
        async with StreamBroker() as broker:
            broker.create_stream('orders')
            async with Target(uris=(broker.uri,)).client() as client:
                assert await client.stream_exists('orders')
                broker.stop_node(0)
                with pytest.raises(StreamConnectionError):
                    async with asyncio.timeout(600):
                        await client.lag('orders', 'billing')


FOLLOWING = Wanted(
    range=range_of('start'),
    limit=None,
    follow=True,
    format='text',
    values=(),
    field=None,
    unfiltered=False,
    grep=None,
)


@pytest.mark.own_clock
@pytest.mark.parametrize('name', ['tail --follow', 'lag --watch'])
async def test_command_without_an_end_waits_for_the_broker(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with click.Context(click.Command(name)):
        async with StreamBroker() as broker:
            broker.create_stream('orders')
            broker.publish('orders', 'first')
            where = Target(uris=(broker.uri,))
            if name == 'lag --watch':
                running = asyncio.create_task(show_lag(where, 'orders', 'billing', True, 1.0))
            else:
                running = asyncio.create_task(tail(where, 'orders', FOLLOWING))
            while not capfd.readouterr().out:
                await asyncio.sleep(1)
                assert not running.done()
            broker.stop_node(0)
            await asyncio.sleep(600)
            assert not running.done()
            running.cancel()
            await asyncio.wait([running])


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A folder with the certificate of an authority, and that of a server."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / 'ca.pem')
    ca.issue_cert('127.0.0.1').private_key_and_cert_chain_pem.write_to_path(tmp_path / 'server.pem')
    trustme.CA().cert_pem.write_to_path(tmp_path / 'other.pem')
    return tmp_path


def test_tls(authority: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority / 'server.pem')
    with StreamBroker(ssl=context) as broker:
        where = ('--uri', broker.uri)
        assert stats(*where, '--tls-ca', str(authority / 'ca.pem')).startswith(HERE)
        assert stats(*where, RBFLY_TLS_CA=str(authority / 'ca.pem')).startswith(HERE)
        assert stats(*where, '--tls-insecure').startswith(HERE)
        for options in ((), ('--tls-ca', str(authority / 'other.pem'))):
            assert '--tls-ca' in stats(*where, *options)


def test_key_needs_a_certificate(authority: Path) -> None:
    done = rbfly('tail', 'orders', '--tls-key', authority / 'server.pem')
    assert done.returncode == 2
    assert '--tls-key needs --tls-cert' in done.stderr


def test_password_is_not_shown(broker: RabbitMQ) -> None:
    address = broker.uri.rpartition('@')[2].rstrip('/')
    for uri in (
        f'rabbitmq-stream://guest:s3cret@{address}',
        'rabbitmq-stream://a:s3cret@localhost:1',
    ):
        done = rbfly('tail', 'orders', '--uri', uri, *SHORT, '-vv')
        assert done.returncode == 1
        assert 's3cret' not in done.stderr + done.stdout
