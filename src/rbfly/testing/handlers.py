"""The broker's answer to each command of a client."""

from collections.abc import Callable, Mapping
from typing import Any

from ..protocol import commands, message_frames
from ..protocol.commands import StreamMetadata, Tune
from ..protocol.const import KEYS, Key, ResponseCode
from ..protocol.fields import NAME_MAX
from ..protocol.offset import Offset
from .arguments import Crash, Refused, require
from .cluster import Cluster
from .group import Member
from .node import Node
from .session import HANDSHAKE, Session
from .stream import Entries, Publisher, Stream, Subscription

PROPERTIES = {
    'product': 'RabbitMQ',
    'platform': 'rbfly.testing',
    'cluster_name': 'rbfly',
    'information': 'an in-memory broker for tests',
}
MECHANISMS = ('PLAIN', 'ANONYMOUS')
EXTERNAL = 'EXTERNAL'  # with TLS only


class Connection(Session):
    """A session that answers each command in `do_` and the name of its key."""

    handlers: Mapping[int, Callable[[Any, Any], Any]]
    after_response: Callable[[], object] | None
    limit: int
    mechanism: str
    name: str
    state: str
    streams: dict[str, Stream]
    tune: Tune
    user: str
    vhost: str

    def __init__(self, cluster: Cluster, node: Node) -> None:
        super().__init__(cluster, node)
        self.handlers = HANDLERS[cluster.version]

    # -- connection

    def do_peer_properties(self, command: commands.PeerProperties) -> Mapping[str, str]:
        self.name = command.properties.get('connection_name', '')
        self.enter('properties')
        return PROPERTIES | {'version': f'{self.cluster.version}.0'}

    def do_sasl_handshake(self, command: commands.SaslHandshake) -> tuple[str, ...]:
        self.enter('authenticating')
        return (*MECHANISMS, EXTERNAL) if self.certificate is not None else MECHANISMS

    def do_sasl_authenticate(self, command: commands.SaslAuthenticate) -> None:
        again = self.state == 'open'
        if not again or self.cluster.version != '4.0':
            self.after_response = self.close
        if again and command.mechanism != self.mechanism:
            raise Refused(ResponseCode.SASL_CANNOT_CHANGE_MECHANISM)
        code = self.faults.authentication
        if code:
            raise Refused(code)
        user = self._authenticate(command)
        if again and user != self.user:
            raise Refused(ResponseCode.SASL_CANNOT_CHANGE_USERNAME)
        self.user, self.mechanism = user, command.mechanism
        self.after_response = None
        self.restart_expiry(self.cluster.credential_lifetime)
        if not again:
            self.enter('authenticated')

    def _authenticate(self, command: commands.SaslAuthenticate) -> str:
        """Return the user.

        :raises Refused: authentication has failed.
        """
        users, certificate = self.cluster.users, self.certificate
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

    def do_tune(self, command: Tune) -> None:
        # The client decides on the heartbeat; the smaller limit of a frame applies.
        self.tune = Tune(self.tune.agree(command).frame_max, command.heartbeat)
        self.enter('tuned')

    def do_open(self, command: commands.Open) -> Mapping[str, str]:
        cluster = self.cluster
        if self.state not in ('authenticated', 'tuning', 'tuned'):
            raise Crash('Open before the client has authenticated')
        opened = sum(session in cluster.sessions for session in self.node.wires)
        full = cluster.max_connections is not None and opened >= cluster.max_connections
        if full or command.vhost not in cluster.vhosts:
            self.after_response = self.close
            raise Refused(ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE)
        self.vhost = command.vhost
        self.streams = cluster.vhosts[command.vhost]
        self.state = 'open'
        self.limit = self.tune.frame_max
        self.start_heartbeats(self.tune.heartbeat)
        cluster.sessions[self] = None
        cluster.emit(f'{self} opened {command.vhost!r} as {self.user!r}')
        address = self.node.address
        return {'advertised_host': address.host, 'advertised_port': str(address.port)}

    def do_exchange_command_versions(
        self, command: commands.ExchangeCommandVersions
    ) -> Mapping[int, tuple[int, int]]:
        if not (KEYS.keys() - NEW[self.cluster.version]).issuperset(command.versions):
            raise Crash('unknown key')
        if command.versions.get(Key.DELIVER, (1, 1))[1] == 2:
            self.deliver_version = 2
        unlisted = {Key.SASL_AUTHENTICATE, Key.EXCHANGE_COMMAND_VERSIONS}
        found = self.handlers.keys() - HANDSHAKE - unlisted
        return {key: (1, 2 if key == Key.PUBLISH else 1) for key in found}

    def do_close(self, command: commands.Close) -> None:
        self.after_response = self.close

    def do_heartbeat(self, command: commands.Heartbeat) -> None:
        """Do nothing: a heartbeat has no response."""

    # -- streams

    def do_create(self, command: commands.Create) -> None:
        self.cluster.create(self.vhost, command.stream, command.arguments, self.node)

    def do_delete(self, command: commands.Delete) -> None:
        stream = self.stream(command.stream)
        self.after_response = lambda: self.cluster.delete(self.vhost, stream)

    def do_metadata(self, command: commands.Metadata) -> dict[str, StreamMetadata]:
        cluster, streams = self.cluster, self.streams
        return {name: cluster.metadata(streams.get(name)) for name in command.streams}

    def do_create_super_stream(self, command: commands.CreateSuperStream) -> None:
        self.cluster.create_super_stream(self.vhost, command, self.node)

    def do_delete_super_stream(self, command: commands.DeleteSuperStream) -> None:
        cluster, vhost, name = self.cluster, self.vhost, command.stream
        cluster.super_stream(vhost, name)
        self.after_response = lambda: cluster.delete_super_stream(vhost, name)

    def do_partitions(self, command: commands.Partitions) -> tuple[str, ...]:
        bindings = self.cluster.super_stream(self.vhost, command.stream)
        return tuple(item.partition for item in bindings)

    def do_route(self, command: commands.Route) -> tuple[str, ...]:
        bindings = self.cluster.super_stream(self.vhost, command.stream)
        key = command.routing_key
        return tuple(sorted({item.partition for item in bindings if item.key == key}))

    def do_stream_stats(self, command: commands.StreamStats) -> dict[str, int]:
        stats = self.stream(command.stream).stats()
        if self.cluster.version == '4.0':
            del stats['committed_offset']
        return stats

    # -- publishing

    def do_publish(self, command: message_frames.PublishV2) -> None:
        columns = [*map(list, zip(*command.entries, strict=True))] or [[], [], []]
        self.publish(command.publisher_id, Entries(*columns))

    def do_declare_publisher(self, command: commands.DeclarePublisher) -> None:
        reference, declared = command.reference, self.publishers
        if command.publisher_id in declared or len(reference.encode()) > NAME_MAX:
            raise Refused(ResponseCode.PRECONDITION_FAILED)
        stream = self.stream(command.stream)
        named = {(item.reference, item.stream.name) for item in declared.values() if item.reference}
        if (reference, stream.name) in named:
            raise Refused(ResponseCode.PRECONDITION_FAILED)
        if not self.cluster.nodes[stream.leader].running:
            raise Refused(ResponseCode.STREAM_NOT_AVAILABLE)
        Publisher(self, declared, stream, command)

    def do_delete_publisher(self, command: commands.DeletePublisher) -> None:
        code = ResponseCode.PUBLISHER_DOES_NOT_EXIST
        require(self.publishers, command.publisher_id, code).remove()

    def do_query_publisher_sequence(self, command: commands.QueryPublisherSequence) -> int:
        return self.stream(command.stream).sequences.get(command.reference, 0)

    # -- consuming

    def do_subscribe(self, command: commands.Subscribe) -> None:
        if len(command.properties.get('name', '').encode()) > NAME_MAX:
            raise Refused(ResponseCode.PRECONDITION_FAILED)
        stream = self.stream(command.stream)
        if command.subscription_id in self.subscriptions:
            raise Refused(ResponseCode.SUBSCRIPTION_ID_ALREADY_EXISTS)
        if self.node.number not in stream.members:
            raise Refused(ResponseCode.STREAM_NOT_AVAILABLE)
        declared, node = self.subscriptions, self.node.number
        if command.properties.get('single-active-consumer') == 'true':
            group = self.cluster.group(self.vhost, stream, command.properties)
            Member(self, declared, stream, command, node, self.updates, group)
        else:
            self.after_response = Subscription(self, declared, stream, command, node).resume

    def do_unsubscribe(self, command: commands.Unsubscribe) -> None:
        code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
        require(self.subscriptions, command.subscription_id, code).remove()

    def do_credit(self, command: commands.Credit) -> None:
        subscription = self.subscriptions.get(command.subscription_id)
        if subscription is not None:
            subscription.grant(command.chunks)
            return
        code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
        self.write(commands.CreditError(code, command.subscription_id).encode())

    def do_store_offset(self, command: commands.StoreOffset) -> None:
        stream = self.streams.get(command.stream)
        if stream is not None:
            stream.store_offset(command.reference, command.offset)

    def do_query_offset(self, command: commands.QueryOffset) -> int:
        offsets = self.stream(command.stream).offsets
        return require(offsets, command.reference, ResponseCode.NO_OFFSET)

    def do_resolve_offset_spec(self, command: commands.ResolveOffsetSpec) -> Offset:
        stream = self.stream(command.stream)
        if self.node.number not in stream.members:
            raise Refused(ResponseCode.STREAM_NOT_AVAILABLE)
        chunk = stream.at(stream.find(command.offset))
        return Offset.offset(stream.end if chunk is None else chunk.offset)


# Commands that a version of RabbitMQ does not know yet.
NEW = {'4.0': {Key.RESOLVE_OFFSET_SPEC}, '4.3': set[int](), '4.4': set[int]()}
HANDLERS: dict[str, dict[int, Callable[[Any, Any], Any]]] = {
    version: {
        key: getattr(Connection, f'do_{name}')
        for key, name in KEYS.items()
        if key not in new and hasattr(Connection, f'do_{name}')
    }
    for version, new in NEW.items()
}
