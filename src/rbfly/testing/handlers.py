"""The commands of an open virtual host: streams, publishers, subscriptions, offsets."""

from typing import Any

from ..protocol import commands
from ..protocol.commands import StreamMetadata
from ..protocol.const import ResponseCode
from ..protocol.fields import NAME_MAX
from ..protocol.offset import Offset
from .arguments import Refused, require
from .consuming import Subscription
from .handshake import CONNECTION
from .publishing import Publisher
from .session import Handler, Session
from .stream import Entries

# -- streams


def create(session: Session, command: commands.Create) -> None:
    cluster = session.cluster
    cluster.create(session.vhost, command.stream, command.arguments, session.node)


def delete(session: Session, command: commands.Delete) -> None:
    stream = session.stream(command.stream)
    session.then(lambda: session.cluster.delete(session.vhost, stream))


def metadata(session: Session, command: commands.Metadata) -> dict[str, StreamMetadata]:
    return session.cluster.metadata(session.vhost, command.streams)


def no_super_stream(session: Session, command: Any) -> None:
    """There are no super streams here."""
    raise Refused(ResponseCode.STREAM_DOES_NOT_EXIST)


def stream_stats(session: Session, command: commands.StreamStats) -> dict[str, int]:
    return session.stream(command.stream).stats()


# -- publishing


def publish(session: Session, command: commands.PublishV2) -> None:
    numbers, filters, parts = [*zip(*command.entries, strict=True)] or [(), (), ()]
    session.publish(command.publisher_id, Entries([*numbers], [*parts], [*filters]))


def declare_publisher(session: Session, command: commands.DeclarePublisher) -> None:
    reference, declared = command.reference, session.publishers
    if command.publisher_id in declared or len(reference.encode()) > NAME_MAX:
        raise Refused(ResponseCode.PRECONDITION_FAILED)
    stream = session.stream(command.stream)
    named = {(item.reference, item.stream.name) for item in declared.values() if item.reference}
    if (reference, stream.name) in named:
        raise Refused(ResponseCode.PRECONDITION_FAILED)
    session.available(stream)
    faults, forget = session.cluster.faults, session.forget_publisher
    publisher = Publisher(session, command.publisher_id, reference, stream, faults, forget)
    session.publishers[publisher.id] = publisher


def delete_publisher(session: Session, command: commands.DeletePublisher) -> None:
    code = ResponseCode.PUBLISHER_DOES_NOT_EXIST
    session.forget_publisher(require(session.publishers, command.publisher_id, code))


def query_sequence(session: Session, command: commands.QueryPublisherSequence) -> int:
    return session.stream(command.stream).sequences.get(command.reference, 0)


# -- consuming


def subscribe(session: Session, command: commands.Subscribe) -> None:
    properties = command.properties
    if len(properties.get('name', '').encode()) > NAME_MAX:
        raise Refused(ResponseCode.PRECONDITION_FAILED)
    stream = session.stream(command.stream)
    if command.subscription_id in session.subscriptions:
        raise Refused(ResponseCode.SUBSCRIPTION_ID_ALREADY_EXISTS)
    if session.node.number not in stream.members:
        raise Refused(ResponseCode.STREAM_NOT_AVAILABLE)
    if properties.get('single-active-consumer') == 'true':  # which is not known here
        raise Refused(ResponseCode.PRECONDITION_FAILED)
    subscription = Subscription(
        session,
        command.subscription_id,
        stream,
        stream.find(command.offset),
        command.credit,
        properties,
        session.deliver_version,
        session.cluster.faults,
    )
    session.subscriptions[subscription.id] = subscription
    stream.readers[subscription] = None
    session.then(subscription.send)


def unsubscribe(session: Session, command: commands.Unsubscribe) -> None:
    code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
    session.forget_subscription(require(session.subscriptions, command.subscription_id, code))


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


HANDLERS: dict[type, Handler] = {
    **CONNECTION,
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
