"""The commands of the handshake and of the connection itself."""

from collections.abc import Mapping

from ..protocol import commands
from ..protocol.commands import Tune
from ..protocol.const import Key, ResponseCode
from .arguments import Crash, Refused
from .session import Handler, Session

VERSION = '4.3.0'  # of RabbitMQ, whose answers these are
PROPERTIES = {
    'product': 'RabbitMQ',
    'version': VERSION,
    'platform': 'rbfly.testing',
    'cluster_name': 'rbfly',
    'information': 'a broker for tests, in memory',
}
KEYS = frozenset(map(int, Key))
MECHANISMS = ('PLAIN', 'ANONYMOUS')
EXTERNAL = 'EXTERNAL'  # over TLS
# Of the commands that a client may send behind Open.
VERSIONS = {
    Key.DECLARE_PUBLISHER: (1, 1),
    Key.PUBLISH: (1, 2),
    Key.QUERY_PUBLISHER_SEQUENCE: (1, 1),
    Key.DELETE_PUBLISHER: (1, 1),
    Key.SUBSCRIBE: (1, 1),
    Key.CREDIT: (1, 1),
    Key.STORE_OFFSET: (1, 1),
    Key.QUERY_OFFSET: (1, 1),
    Key.UNSUBSCRIBE: (1, 1),
    Key.CREATE: (1, 1),
    Key.DELETE: (1, 1),
    Key.METADATA: (1, 1),
    Key.CLOSE: (1, 1),
    Key.HEARTBEAT: (1, 1),
    Key.ROUTE: (1, 1),
    Key.PARTITIONS: (1, 1),
    Key.STREAM_STATS: (1, 1),
    Key.DELETE_SUPER_STREAM: (1, 1),
    Key.RESOLVE_OFFSET_SPEC: (1, 1),
}


def peer_properties(session: Session, command: commands.PeerProperties) -> Mapping[str, str]:
    session.name = command.properties.get('connection_name', '')
    session.enter('properties')
    return PROPERTIES


def sasl_handshake(session: Session, command: commands.SaslHandshake) -> tuple[str, ...]:
    session.enter('authenticating')
    return (*MECHANISMS, EXTERNAL) if session.certificate is not None else MECHANISMS


def sasl_authenticate(session: Session, command: commands.SaslAuthenticate) -> None:
    again = session.state == 'open'
    session.then(session.close)
    if again and command.mechanism != session.mechanism:
        raise Refused(ResponseCode.SASL_CANNOT_CHANGE_MECHANISM)
    code = session.cluster.faults.authentication
    if code:
        raise Refused(code)
    user = authenticate(session, command)
    if again and user != session.user:
        raise Refused(ResponseCode.SASL_CANNOT_CHANGE_USERNAME)
    session.user, session.mechanism = user, command.mechanism
    session.then(None)
    if not again:
        session.enter('authenticated')


def authenticate(session: Session, command: commands.SaslAuthenticate) -> str:
    """The user."""
    users, certificate = session.cluster.users, session.certificate
    if command.mechanism == 'ANONYMOUS':
        return 'guest'
    if command.mechanism == 'PLAIN':
        parts = command.data.split(b'\0')
        if len(parts) != 3 or parts[0]:
            raise Refused(ResponseCode.SASL_ERROR)
        user, password = (part.decode(errors='replace') for part in parts[1:])
        known = users.get(user) == password
    elif command.mechanism == EXTERNAL and certificate is not None:
        names = dict(item for part in certificate.get('subject', ()) for item in part)
        user = names.get('commonName', '')
        known = user in users
    else:
        raise Refused(ResponseCode.SASL_MECHANISM_NOT_SUPPORTED)
    if not known:
        raise Refused(ResponseCode.AUTHENTICATION_FAILURE)
    return user


def tune(session: Session, command: Tune) -> None:
    # The heartbeat is what the client says, the limit of a frame the smaller one.
    frame_max = session.tune.agree(command).frame_max
    session.tune = Tune(frame_max, command.heartbeat)
    session.enter('tuned')


def open_vhost(session: Session, command: commands.Open) -> Mapping[str, str]:
    cluster = session.cluster
    if session.state not in ('authenticated', 'tuning', 'tuned'):
        raise Crash('Open before the client has authenticated')
    if command.vhost not in cluster.vhosts:
        session.then(session.close)
        raise Refused(ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE)
    session.vhost = command.vhost
    session.streams = cluster.vhosts[command.vhost]
    session.state = 'open'
    session.limit = session.tune.frame_max
    session.start_heartbeats(session.tune.heartbeat)
    cluster.sessions[session] = None
    cluster.tell(f'{session} opened {command.vhost!r} as {session.user!r}')
    host, port = session.node.host, session.node.port
    return {'advertised_host': host, 'advertised_port': str(port)}


def exchange_command_versions(
    session: Session, command: commands.ExchangeCommandVersions
) -> Mapping[Key, tuple[int, int]]:
    if not KEYS.issuperset(command.versions):
        raise Crash('a key that nobody knows')
    if command.versions.get(Key.DELIVER, (1, 1))[1] == 2:
        session.deliver_version = 2
        for subscription in session.subscriptions.values():
            subscription.version = 2
    return VERSIONS


def close(session: Session, command: commands.Close) -> None:
    session.then(session.close)


def heartbeat(session: Session, command: commands.Heartbeat) -> None:
    """A heartbeat needs no answer."""


HANDSHAKE: dict[type, Handler] = {
    commands.PeerProperties: peer_properties,
    commands.SaslHandshake: sasl_handshake,
    commands.SaslAuthenticate: sasl_authenticate,
    Tune: tune,
    commands.Open: open_vhost,
    commands.Heartbeat: heartbeat,
}
CONNECTION: dict[type, Handler] = {
    commands.SaslAuthenticate: sasl_authenticate,
    commands.ExchangeCommandVersions: exchange_command_versions,
    commands.Close: close,
    commands.Heartbeat: heartbeat,
}
