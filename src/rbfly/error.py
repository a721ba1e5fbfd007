"""All errors that RbFly raises.

Every error raised on purpose is a :class:`RbFlyError`.  There are three families: wrong use of the
API, values or bytes that AMQP 1.0 does not allow, and failures of a broker or the network.
The `code` of an error is one of :class:`ResponseCode`.
"""

from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeVar

from .protocol.const import ResponseCode

__all__ = [
    'AMQPDecoderError',
    'AMQPEncoderError',
    'AMQPEncoderIntegerError',
    'AMQPEncoderOverflowError',
    'AMQPEncoderTypeError',
    'AMQPEncoderValueError',
    'AMQPError',
    'ArgumentError',
    'ArgumentOverflowError',
    'ArgumentTypeError',
    'AuthenticationError',
    'ChunkError',
    'CompressionError',
    'ConfirmTimeout',
    'ConnectTimeout',
    'CredentialsError',
    'EventLoopError',
    'FrameError',
    'MessageContextError',
    'MessageTimeout',
    'MessageTooLarge',
    'MessageTypeError',
    'NoRouteError',
    'OffsetGapError',
    'OffsetNotStored',
    'PipeError',
    'ProtocolError',
    'PublishError',
    'PublishErrorInfo',
    'PublisherError',
    'PublisherNameInUse',
    'RbFlyBufferError',
    'RbFlyError',
    'RequestTimeout',
    'ResponseCode',
    'SendProgress',
    'StreamConnectionError',
    'StreamDoesNotExist',
    'SubscriptionClosed',
    'SubscriptionError',
    'TLSError',
    'URIError',
    'VirtualHostError',
    'WindowTimeout',
]

E = TypeVar('E', bound=Exception)

# What became of a message.
Outcome = Literal['not_sent', 'refused', 'unknown']


class SendProgress:
    """The outcome of each message that a call of `send_many` took from its iterator.

    Errors of `send_many` have one in their attribute `progress`.  `send_many(progress=...)` fills
    one in when the call ends, however it ends.  Messages are numbered from 0, in the order in which
    the call took them; those that are neither in `refused` nor in `unknown` are confirmed.

    :ivar taken: number of messages taken (int).
    :ivar refused: numbers of the messages that are not stored, ascending (list[int]): the broker
        refused them, they could not be encoded, or the publisher gave up before it sent them.
    :ivar unknown: numbers of the messages that may be stored, ascending (list[int]): the broker has
        not confirmed them, or refused them only when they were resent after a reconnect.
    """

    def __init__(self) -> None:
        self.taken = 0
        self.refused: list[int] = []
        self.unknown: list[int] = []
        self._sending: Any = None  # the call, while confirms may still arrive

    @property
    def confirmed(self) -> int:
        """Number of confirmed messages."""
        return self.taken - len(self.refused) - len(self.unknown)

    @property
    def unconfirmed(self) -> list[int]:
        """Numbers of the messages that are refused or unknown, ascending."""
        return sorted(self.refused + self.unknown)

    async def wait(self) -> None:
        """Wait for the outcome of the unknown messages, then update the attributes.

        After a timeout or a cancellation, the publisher continues to send the unknown messages and
        to receive their confirms.  Messages that are unknown after `wait` remain unknown: the
        publisher gave up on them, because it was closed, its stream was deleted, or it could not
        reconnect.

        :raises EventLoopError: the publisher belongs to another event loop.
        """
        if self._sending is not None:
            await self._sending.wait(self)

    def __repr__(self) -> str:
        return (
            f'<{type(self).__name__} taken={self.taken} confirmed={self.confirmed}'
            f' refused={len(self.refused)} unknown={len(self.unknown)}>'
        )

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {'_sending': None}


class RbFlyError(Exception):
    """Base of every error that RbFly raises on purpose.

    :ivar index: number, from 0, of the `send_many` message that caused the error (int); None if no
        single message did, or another call raised the error.
    :ivar progress: outcome of the messages of `send_many` (:class:`SendProgress`); None for errors
        of other calls.
    :ivar outcome: what became of the message that a call was to publish (str): `'not_sent'`, the
        client did not send it, and never will; `'refused'`, the broker did not store it;
        `'unknown'`, it may be stored, also if the broker refused it when it was resent, or if its
        explicit publishing id was sent before.  For several messages, it concerns those without a
        confirm: `'unknown'` if any of them may be stored.  None for errors of other calls.
    :ivar retriable: the same call may succeed later (bool).  For calls that publish, True only if
        sending again cannot store a message twice.
    :ivar code: response code of the broker (int, see :class:`ResponseCode`) for a
        :class:`ProtocolError`; else None.
    :ivar stream: name of the stream that the error is about (str): for a super stream, of the
        partition, or of the super stream if it concerns all of them; None if only a message or the
        connection is the cause.
    :ivar reference: name of the stored offset, or of the group, that it is about (str); None for
        other errors.
    """

    index: int | None = None
    progress: SendProgress | None = None
    outcome: Outcome | None = None
    retriable: bool = False
    code: int | None = None
    stream: str | None = None
    reference: str | None = None
    _is_move: bool = False  # the program has replaced the connection
    # The text is computed from these: nothing rewrites `args`.
    _explanation: str | None = None  # the client knows more than `args` says
    _before: tuple[str, ...] = ()
    _after: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = super().__str__() if self._explanation is None else self._explanation
        return ''.join((*self._before, text, *self._after))

    def __repr__(self) -> str:
        return f'{type(self).__name__}({str(self)!r})'

    def __reduce__(self) -> tuple[Any, ...]:
        reduced: Any = super().__reduce__()
        _, args, *state = reduced
        return _restore, (type(self), args), *state


def _restore(kind: type[RbFlyError], args: tuple[Any, ...]) -> RbFlyError:
    # Bypass the constructor of the class: `args` holds the finished text, not its parameters.
    error = kind.__new__(kind, *args)
    builtin: Any = next(item for item in kind.__mro__ if item.__module__ == 'builtins')
    builtin.__init__(error, *args)
    return error


class RbFlyBufferError(RbFlyError):
    """The buffer passed to :func:`rbfly.amqp.encode_amqp` is too small for the message."""


class MessageContextError(RbFlyError, LookupError, ValueError):
    """The task or subscription has not received a message, or the task received its last message
    from another stream."""


def no_message() -> MessageContextError:
    """Create the error for a task that asks for the context of its last message and has none."""
    return MessageContextError(
        'this task has received no message: pass it the context, for example one from messages()'
    )


class MessageTypeError(RbFlyError, TypeError):
    """The body of the message has the wrong type for this access."""


class AMQPError(RbFlyError):
    """Base of the codec's errors."""


class AMQPDecoderError(AMQPError):
    """Bytes that are not an AMQP 1.0 message, or a body that is not of the requested type.

    :ivar path: where the wrong value is in the body, if a type or codec was requested (str), e.g.
        `$.items[3].price`; else None.
    :ivar position: index of the byte, in the message, at which decoding stopped; None if unknown.
    :ivar stream: name of the stream, or of the partition (str); None outside of a subscription.
    :ivar offset: offset of the message in its stream (int); None outside of a subscription.
    :ivar data: the undecodable message (bytes); None outside of a subscription.
    """

    def __init__(self, message: str = '', position: int | None = None) -> None:
        super().__init__(message)
        self.position = position
        self.path: str | None = None
        self.stream: str | None = None
        self.offset: int | None = None
        self.data: bytes | None = None

    def __str__(self) -> str:
        text = super().__str__()
        if self.path is not None:
            text = f'{self.path}: {text}'
        if self.offset is not None:
            where = 'of' if self.path is None else 'in'
            text += f' {where} the message at offset {self.offset}'
        return text if self.stream is None else f'{text} of stream {self.stream!r}'


class AMQPEncoderError(AMQPError):
    """A Python value that cannot be written as AMQP 1.0.

    The text begins with the path of the value in the message, e.g. `body['items'][3]['price']`,
    unless it is the body itself.
    """

    outcome: Outcome | None = 'not_sent'


class AMQPEncoderTypeError(AMQPEncoderError, TypeError):
    """A value of a type that cannot be encoded in this part of a message."""


class AMQPEncoderValueError(AMQPEncoderError, ValueError):
    """A value that its AMQP 1.0 type does not allow, e.g. a lone surrogate or a circular list."""


class AMQPEncoderOverflowError(AMQPEncoderError, OverflowError):
    """A number outside the range of its AMQP 1.0 type."""


class AMQPEncoderIntegerError(AMQPEncoderOverflowError, AMQPEncoderTypeError):
    """An integer of more than 64 bits; AMQP 1.0 has no type for it."""


def meaning_of(code: int) -> str:
    """What a response code means, in words."""
    try:
        return ResponseCode(code).meaning
    except ValueError:
        return 'unknown response code'


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the singular for 1."""
    return f'{count} {noun}' if count == 1 else f'{count} {noun}s'


class ProtocolError(RbFlyError):
    """The broker refused a request or violated the protocol.

    :ivar code: response code of the stream protocol (int, see :class:`ResponseCode`).
    """

    code: int
    command: int | None = None  # the request that the broker refused

    def __init__(self, code: int, detail: str = '') -> None:
        self.code = code
        message = f'{meaning_of(code)} (code 0x{code:02x})'
        super().__init__(f'{detail}: {message}' if detail else message)
        self.retriable: bool = code == ResponseCode.STREAM_NOT_AVAILABLE


class StreamDoesNotExist(ProtocolError):
    """The stream does not exist, or was deleted while in use (code 0x02)."""

    def __init__(self, stream: str = '', detail: str = '') -> None:
        name = f'stream {stream!r}' if stream else ''
        super().__init__(ResponseCode.STREAM_DOES_NOT_EXIST, f'{name} {detail}'.strip())
        self.stream: str | None = stream or None


class AuthenticationError(ProtocolError):
    """The user or password is wrong, or client and broker share no SASL mechanism (codes 0x07 to
    0x0b)."""


class VirtualHostError(ProtocolError):
    """The virtual host does not exist, the user has no access to it, or a limit of connections of
    the node, the virtual host or the user is reached (code 0x0c)."""


class PublishErrorInfo(NamedTuple):
    """The publishing id (int) of a message that was not stored, and the response code (int, see
    :class:`ResponseCode`)."""

    publish_id: int
    code: int


class PublishError(ProtocolError):
    """The broker did not store a message.

    :ivar publish_id: publishing id of the message (int), or of the first of several.
    :ivar errors: publishing id and code of every message that failed in the call
        (list of :class:`PublishErrorInfo`).
    :ivar total: number of messages that failed (int).  `close` lists at most 1,000 failures of
        `submit` in `errors`; `total` counts all of them.
    """

    outcome: Outcome | None = 'refused'

    def __init__(self, code: int, publish_id: int, detail: str = '') -> None:
        text = f'message with publishing id {publish_id} was not stored'
        super().__init__(code, f'{text}; {detail}' if detail else text)
        self.publish_id = publish_id
        self.errors: list[PublishErrorInfo] = [PublishErrorInfo(publish_id, code)]
        self.total = 1


class ArgumentError(RbFlyError, ValueError):
    """An argument has an invalid value, e.g. a name that is too long for the protocol."""

    outcome: Outcome | None = 'not_sent'


class ArgumentTypeError(RbFlyError, TypeError):
    """An argument has the wrong type."""

    outcome: Outcome | None = 'not_sent'


class ArgumentOverflowError(ArgumentError, OverflowError):
    """A number does not fit into its protocol field."""


class PublisherError(RbFlyError):
    """A publisher cannot be used, e.g. because it is closed."""

    outcome: Outcome | None = 'not_sent'


class NoRouteError(PublisherError):
    """A message of a super stream has no partition; it was not sent.  Other messages are not
    affected."""


class PublisherNameInUse(PublisherError):
    """Another publisher uses the same name on the same stream.

    The publisher takes no more messages, and its unconfirmed messages may or may not be stored.
    Messages that were confirmed before may also be lost: the broker takes messages of one
    publisher for duplicates of the other's.  Give each process its own name.

    The other publisher may also be that of an earlier run of the program, if it was killed: the
    broker may still be reading what that run has sent.  Wait until the broker has ended the
    connection of that run, or retry: open the publisher again.
    """


class MessageTooLarge(PublisherError, ValueError):
    """A message does not fit into a frame; it was not sent and has no publishing id."""


class SubscriptionError(RbFlyError):
    """A subscription cannot be read: another task iterates it, the broker is too old for `until` or
    for groups, or a member of a group commits an offset after it has lost its activity."""


class SubscriptionClosed(SubscriptionError):
    """The subscription has ended and delivers no more messages.

    `open` and `fetch` raise this error; `async for` ends instead.
    """


class OffsetGapError(SubscriptionError):
    """Messages that a subscription was to read are missing; the iteration can continue.

    Usually, retention has removed the offsets from `wanted` to `first - 1`.  Some of them may
    belong to stored offsets, which use up offsets of the stream, or to messages that the
    subscription's filter does not select.

    If `wanted` is higher than `first`, the subscription starts after the end of the stream, which
    was probably deleted and created again.  If the iteration continues, it waits for `wanted`.

    :ivar stream: name of the stream (str).
    :ivar wanted: offset of the next message to read (int).
    :ivar first: first offset of the stream, or that of the message that is published next (int).
    """

    stream: str

    def __init__(self, stream: str, wanted: int, first: int) -> None:
        gap = f'offset {wanted}' if first == wanted + 1 else f'offsets {wanted} to {first - 1}'
        text = (
            f'stream {stream!r} begins at offset {first}: retention has removed {gap} before the'
            ' subscription read them'
        )
        if wanted > first:
            text = (
                f'the subscription starts at offset {wanted}, but stream {stream!r} ends before'
                f' offset {first}: was the stream deleted and created again?'
            )
        super().__init__(text)
        self.stream = stream
        self.wanted = wanted
        self.first = first


class PipeError(RbFlyError):
    """A pipe cannot continue where it was: its position and its outputs contradict each other.

    Usually, its source was deleted and created again: the pipe would take new messages for those
    that it has processed.  `stream` is the stream or partition that it reads, `reference` the name
    of the job.
    """


class OffsetNotStored(RbFlyError):
    """An offset is not stored.

    The broker did not store it, another program has replaced it since, or the member of a group
    that had to store it is not active.
    """


class EventLoopError(RbFlyError, RuntimeError):
    """An object was used outside the event loop, thread or process that it belongs to.

    The call changed nothing, and the object remains usable in its own event loop.  From another
    thread, call :func:`asyncio.run_coroutine_threadsafe`; in another event loop or process, create
    another client.
    """

    outcome: Outcome | None = 'not_sent'


def wrong_loop(owned: object) -> EventLoopError:
    """Create the error for using `owned` outside its event loop, thread or process."""
    return EventLoopError(
        f'{owned} belongs to another event loop, thread or process: from another thread, call'
        ' asyncio.run_coroutine_threadsafe(coroutine, loop) with its loop; in another event loop or'
        ' a forked process, create another client (one client per process)'
    )


class URIError(ArgumentError):
    """A broker URI is malformed."""


class StreamConnectionError(RbFlyError, ConnectionError):
    """The client could not connect to a broker, or lost the connection."""

    retriable = True


class TLSError(StreamConnectionError):
    """The TLS handshake failed, e.g. because the broker's certificate is not trusted."""

    retriable = False


class FrameError(StreamConnectionError):
    """The peer sent bytes that are not valid frames of the stream protocol."""

    retriable = False


class ChunkError(SubscriptionError):
    """A chunk is corrupt: its CRC, its header or a size in it is wrong."""


class CompressionError(RbFlyError, ImportError):
    """A compression algorithm needs a library that is not installed."""


class CredentialsError(StreamConnectionError):
    """The function passed as `credentials` failed, or what it returned has expired.

    The client asks again at the next try.  `__cause__` is what the function raised.
    """


class ConnectTimeout(StreamConnectionError, TimeoutError):
    """The client could not connect within `connect_timeout`, `reconnect_timeout`, or the `timeout`
    of `ping`.

    Its `__cause__` is the error of the last try; None if no try failed, because no broker answered.
    """


class RequestTimeout(StreamConnectionError, TimeoutError):
    """The broker did not answer a request within `request_timeout`, or within the `timeout` of
    `ping`.  Creating and deleting a stream may take longer."""


class MessageTimeout(RbFlyError, TimeoutError):
    """No message arrived within the `timeout` of a subscription; the iteration can continue."""


class ConfirmTimeout(RbFlyError, TimeoutError):
    """The broker did not confirm a message in time; `outcome` says whether it may still be stored.

    The text names the publisher, the stream and, if there is no connection, the reason.  The error
    of the connection is also the `__cause__`, unless that is an error of messages.

    :ivar unconfirmed: number of messages that were sent but not confirmed when `close` of a
        publisher gave up (int); they may be stored.  0 if another method raised this error.
    :ivar unsent: number of messages that `close` did not send (int); they are not stored.  0 if
        another method raised this error.
    """

    outcome: Outcome | None = 'unknown'
    unconfirmed: int = 0
    unsent: int = 0


class WindowTimeout(ConfirmTimeout):
    """The publisher's window stayed full; the message was not sent and has no publishing id."""

    outcome: Outcome | None = 'not_sent'
    retriable = True


_BY_CODE: dict[int, type[ProtocolError]] = {
    ResponseCode.SASL_MECHANISM_NOT_SUPPORTED: AuthenticationError,
    ResponseCode.AUTHENTICATION_FAILURE: AuthenticationError,
    ResponseCode.SASL_ERROR: AuthenticationError,
    ResponseCode.SASL_CHALLENGE: AuthenticationError,  # PLAIN and EXTERNAL have none
    ResponseCode.SASL_AUTHENTICATION_FAILURE_LOOPBACK: AuthenticationError,
    ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE: VirtualHostError,
}


def protocol_error(
    code: int, detail: str = '', stream: str = '', command: int | None = None
) -> ProtocolError:
    """Create the error for a response code."""
    if code == ResponseCode.STREAM_DOES_NOT_EXIST:
        return StreamDoesNotExist(stream)
    if stream:
        detail = f'{detail}: stream {stream!r}' if detail else f'stream {stream!r}'
    error = _BY_CODE.get(code, ProtocolError)(code, detail)
    error.stream = stream or None
    error.command = command
    return error


R = TypeVar('R', bound=RbFlyError)


def about(error: R, stream: str, reference: str | None = None) -> R:
    """Say what an error is about, unless it says so itself, and return it."""
    error.stream = error.stream or stream
    error.reference = error.reference or reference
    return error


def copy_error(error: E) -> E:
    """Copy an error, so that each of several callers raises one with its own traceback."""
    from copy import copy

    try:
        found = copy(error)
    except Exception:  # a class of the program whose constructor takes other arguments
        return error
    found.__cause__ = error.__cause__
    if notes := getattr(error, '__notes__', None):
        found.__notes__ = [*notes]  # else both have the same list
    return found


def raise_any(error: BaseException | None) -> None:
    """Raise an error, if there is one; no frame of the traceback refers to it.

    A local variable of the caller would: pass what a call returns.
    """
    if error is not None:
        try:
            raise error
        finally:
            del error


def add_text(error: R, before: str = '', after: str = '') -> R:
    """Say more in the text of an error, and return it."""
    error._before, error._after = (before, *error._before), (*error._after, after)
    return error


def explained(error: R, text: str) -> R:
    """Say in an error what the client has found out about its reason, and return it."""
    error._explanation = text
    return error


def set_fields(error: E, **fields: object) -> E:
    """Set attributes of an error, unless its class does not allow it, and return it."""
    for name, value in fields.items():
        with suppress(AttributeError):
            setattr(error, name, value)
    return error


STOPS = (StopIteration, StopAsyncIteration)


class CallbackError(Exception):
    """Carries the error of a function of the program to the call that raises it.

    Nothing on the way handles the error by its type.

    :ivar error: what the call raises.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error

    def __str__(self) -> str:
        return str(self.error) or type(self.error).__name__


def of_callback(
    error: BaseException, where: str, silent: tuple[type[BaseException], ...] = STOPS
) -> BaseException:
    """Return what to raise for an error of a function of the program, with a note that says where.

    The end of an iterator would end a loop of the program silently: it becomes a RuntimeError, as
    in a generator.

    :param where: the function, and what it was called for.
    :param silent: the errors to replace.
    """
    if isinstance(error, silent):
        found = RuntimeError(f'{where} raised {type(error).__name__}')
        found.__cause__ = error
        return found
    add_note(error, f'raised by {where}')
    return error


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error of the program, unless it has that note, or takes none."""
    if note not in getattr(error, '__notes__', ()):  # the program may raise one object repeatedly
        with suppress(Exception):  # its class may allow no attributes
            error.add_note(note)


def without_frames(error: E) -> E:
    """Drop the tracebacks of an error: their frames would form reference cycles with its holder."""
    if error.__cause__ is not None:
        error.__cause__.with_traceback(None)
    return error.with_traceback(None)
