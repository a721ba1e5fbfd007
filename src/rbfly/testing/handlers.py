"""The broker's answer to each command of a client."""

from collections.abc import Mapping
from typing import Any

from ..protocol import commands
from ..protocol.commands import StreamMetadata, Tune
from ..protocol.const import Key, ResponseCode
from ..protocol.fields import NAME_MAX
from ..protocol.offset import Offset
from .arguments import Crash, Refused, require
from .session import Handler, Session
from .stream import Entries, Publisher, Subscription

VERSION = '4.3.0'  # version of RabbitMQ that the broker behaves like
PROPERTIES = {
    'product': 'RabbitMQ',
    'version': VERSION,
    'platform': 'rbfly.testing',
    'cluster_name': 'rbfly',
    'information': 'an in-memory broker for tests',
}
KEYS = frozenset(map(int, Key))
MECHANISMS = ('PLAIN', 'ANONYMOUS')
EXTERNAL = 'EXTERNAL'  # with TLS only
# -- connection


def peer_properties(session: Session, command: commands.PeerProperties) -> Mapping[str, str]:
    session.name = command.properties.get('connection_name', '')
    session.enter('properties')
    return PROPERTIES


def sasl_handshake(session: Session, command: commands.SaslHandshake) -> tuple[str, ...]:
    session.enter('authenticating')
    return (*MECHANISMS, EXTERNAL) if session.certificate is not None else MECHANISMS


def sasl_authenticate(session: Session, command: commands.SaslAuthenticate) -> None:
    again = session.state == 'open'
    session.after_response(session.close)
    if again and command.mechanism != session.mechanism:
        raise Refused(ResponseCode.SASL_CANNOT_CHANGE_MECHANISM)
    code = session.faults.authentication
    if code:
        raise Refused(code)
    user = authenticate(session, command)
    if again and user != session.user:
        raise Refused(ResponseCode.SASL_CANNOT_CHANGE_USERNAME)
    session.user, session.mechanism = user, command.mechanism
    session.after_response(None)
    if not again:
        session.enter('authenticated')


def authenticate(session: Session, command: commands.SaslAuthenticate) -> str:
    """Return the user.

    :raises Refused: authentication has failed.
    """
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
    # The client decides on the heartbeat; the smaller limit of a frame applies.
    session.tune = Tune(session.tune.agree(command).frame_max, command.heartbeat)
    session.enter('tuned')


def open_vhost(session: Session, command: commands.Open) -> Mapping[str, str]:
    cluster = session.cluster
    if session.state not in ('authenticated', 'tuning', 'tuned'):
        raise Crash('Open before the client has authenticated')
    if command.vhost not in cluster.vhosts:
        session.after_response(session.close)
        raise Refused(ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE)
    session.vhost = command.vhost
    session.streams = cluster.vhosts[command.vhost]
    session.state = 'open'
    session.limit = session.tune.frame_max
    session.start_heartbeats(session.tune.heartbeat)
    cluster.sessions[session] = None
    cluster.emit(f'{session} opened {command.vhost!r} as {session.user!r}')
    return {'advertised_host': session.node.host, 'advertised_port': str(session.node.port)}


def exchange_command_versions(
    session: Session, command: commands.ExchangeCommandVersions
) -> Mapping[Key, tuple[int, int]]:
    if not KEYS.issuperset(command.versions):
        raise Crash('unknown key')
    if command.versions.get(Key.DELIVER, (1, 1))[1] == 2:
        session.deliver_version = 2
    handled: set[Any] = HANDLERS.keys() - HANDSHAKE.keys() - {commands.ExchangeCommandVersions}
    return {item.key: (1, getattr(item, 'version', 1)) for item in handled}


def close(session: Session, command: commands.Close) -> None:
    session.after_response(session.close)


def heartbeat(session: Session, command: commands.Heartbeat) -> None:
    """Do nothing: a heartbeat has no response."""


# -- streams


def create(session: Session, command: commands.Create) -> None:
    session.cluster.create(session.vhost, command.stream, command.arguments, session.node)


def delete(session: Session, command: commands.Delete) -> None:
    stream = session.stream(command.stream)
    session.after_response(lambda: session.cluster.delete(session.vhost, stream))


def metadata(session: Session, command: commands.Metadata) -> dict[str, StreamMetadata]:
    cluster, streams = session.cluster, session.streams
    return {name: cluster.metadata(streams.get(name)) for name in command.streams}


def no_super_stream(session: Session, command: Any) -> None:
    """Refuse: the broker has no super streams."""
    raise Refused(ResponseCode.STREAM_DOES_NOT_EXIST)


def stream_stats(session: Session, command: commands.StreamStats) -> dict[str, int]:
    return session.stream(command.stream).stats()


# -- publishing


def publish(session: Session, command: commands.PublishV2) -> None:
    columns = [*map(list, zip(*command.entries, strict=True))] or [[], [], []]
    session.publish(command.publisher_id, Entries(*columns))


def declare_publisher(session: Session, command: commands.DeclarePublisher) -> None:
    reference, declared = command.reference, session.publishers
    if command.publisher_id in declared or len(reference.encode()) > NAME_MAX:
        raise Refused(ResponseCode.PRECONDITION_FAILED)
    stream = session.stream(command.stream)
    named = {(item.reference, item.stream.name) for item in declared.values() if item.reference}
    if (reference, stream.name) in named:
        raise Refused(ResponseCode.PRECONDITION_FAILED)
    if not session.cluster.nodes[stream.leader].running:
        raise Refused(ResponseCode.STREAM_NOT_AVAILABLE)
    Publisher(session, declared, stream, command)


def delete_publisher(session: Session, command: commands.DeletePublisher) -> None:
    code = ResponseCode.PUBLISHER_DOES_NOT_EXIST
    require(session.publishers, command.publisher_id, code).remove()


def query_sequence(session: Session, command: commands.QueryPublisherSequence) -> int:
    return session.stream(command.stream).sequences.get(command.reference, 0)


# -- consuming


def subscribe(session: Session, command: commands.Subscribe) -> None:
    if len(command.properties.get('name', '').encode()) > NAME_MAX:
        raise Refused(ResponseCode.PRECONDITION_FAILED)
    stream = session.stream(command.stream)
    if command.subscription_id in session.subscriptions:
        raise Refused(ResponseCode.SUBSCRIPTION_ID_ALREADY_EXISTS)
    if session.node.number not in stream.members:
        raise Refused(ResponseCode.STREAM_NOT_AVAILABLE)
    if command.properties.get('single-active-consumer') == 'true':  # not implemented
        raise Refused(ResponseCode.PRECONDITION_FAILED)
    declared, node = session.subscriptions, session.node.number
    subscription = Subscription(session, declared, stream, command, node)
    session.after_response(subscription.resume)


def unsubscribe(session: Session, command: commands.Unsubscribe) -> None:
    code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
    require(session.subscriptions, command.subscription_id, code).remove()


def credit(session: Session, command: commands.Credit) -> None:
    subscription = session.subscriptions.get(command.subscription_id)
    if subscription is not None:
        subscription.grant(command.chunks)
        return
    code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
    session.write(commands.CreditError(code, command.subscription_id).encode())


def store_offset(session: Session, command: commands.StoreOffset) -> None:
    stream = session.streams.get(command.stream)
    if stream is not None:
        stream.store_offset(command.reference, command.offset)


def query_offset(session: Session, command: commands.QueryOffset) -> int:
    offsets = session.stream(command.stream).offsets
    return require(offsets, command.reference, ResponseCode.NO_OFFSET)


def resolve_offset_spec(session: Session, command: commands.ResolveOffsetSpec) -> Offset:
    stream = session.stream(command.stream)
    chunk = stream.at(stream.find(command.offset))
    return Offset.offset(stream.end if chunk is None else chunk.offset)


HANDSHAKE: dict[type, Handler] = {
    commands.PeerProperties: peer_properties,
    commands.SaslHandshake: sasl_handshake,
    commands.SaslAuthenticate: sasl_authenticate,
    Tune: tune,
    commands.Open: open_vhost,
    commands.Heartbeat: heartbeat,
}
HANDLERS: dict[type, Handler] = {
    commands.SaslAuthenticate: sasl_authenticate,
    commands.ExchangeCommandVersions: exchange_command_versions,
    commands.Close: close,
    commands.Heartbeat: heartbeat,
    commands.Create: create,
    commands.Delete: delete,
    commands.Metadata: metadata,
    commands.StreamStats: stream_stats,
    commands.Route: no_super_stream,
    commands.Partitions: no_super_stream,
    commands.DeleteSuperStream: no_super_stream,
    commands.DeclarePublisher: declare_publisher,
    commands.DeletePublisher: delete_publisher,
    commands.PublishV2: publish,
    commands.QueryPublisherSequence: query_sequence,
    commands.Subscribe: subscribe,
    commands.Unsubscribe: unsubscribe,
    commands.Credit: credit,
    commands.StoreOffset: store_offset,
    commands.QueryOffset: query_offset,
    commands.ResolveOffsetSpec: resolve_offset_spec,
}
