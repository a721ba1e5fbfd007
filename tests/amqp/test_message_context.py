"""Context data beyond the message: publishing id, offset, and the original bytes."""

import contextvars
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from rbfly.amqp import (
    MessageCtx,
    decode_amqp,
    encode_amqp_bytes,
    get_message_ctx,
    set_message_ctx,
    stream_message_ctx,
)
from rbfly.error import (
    AMQPEncoderOverflowError,
    AMQPEncoderTypeError,
    MessageTypeError,
    RbFlyError,
)

# --- publishing id ---


def assigned(publish_id: int | None) -> MessageCtx:
    ctx = MessageCtx('a')
    ctx.stream_publish_id = publish_id
    return ctx


WAYS: list[Callable[[int | None], MessageCtx]] = [
    lambda publish_id: stream_message_ctx('a', publish_id=publish_id),
    lambda publish_id: MessageCtx('a', stream_publish_id=publish_id),
    assigned,
]
each_way = pytest.mark.parametrize('way', WAYS, ids=['factory', 'constructor', 'attribute'])


@each_way
@pytest.mark.parametrize('publish_id', [0, 10, 2**64 - 1])
def test_set_publish_id(way: Callable[[int | None], MessageCtx], publish_id: int) -> None:
    ctx = way(publish_id)
    assert (ctx.stream_publish_id, ctx.is_set_stream_publish_id) == (publish_id, True)


@each_way
def test_publish_id_is_none(way: Callable[[int | None], MessageCtx]) -> None:
    ctx = way(None)
    assert (ctx.stream_publish_id, ctx.is_set_stream_publish_id) == (0, False)


def test_none_unsets_publish_id() -> None:
    ctx = stream_message_ctx('a', publish_id=10)
    ctx.stream_publish_id = None
    assert (ctx.stream_publish_id, ctx.is_set_stream_publish_id) == (0, False)


def test_publish_id_flag() -> None:
    ctx = MessageCtx('a', stream_publish_id=10, is_set_stream_publish_id=False)
    assert (ctx.stream_publish_id, ctx.is_set_stream_publish_id) == (10, False)
    assert MessageCtx('a', is_set_stream_publish_id=True).is_set_stream_publish_id is True


@pytest.mark.parametrize('name', ['stream_publish_id', 'stream_offset'])
@pytest.mark.parametrize(
    ('value', 'kind', 'text'),
    [
        (-1, OverflowError, 'must be from 0 to 18446744073709551615'),
        (2**64, OverflowError, 'must be from 0 to 18446744073709551615'),
        ('1', TypeError, 'must be int, not str'),
        (1.5, TypeError, 'must be int, not float'),
        (True, TypeError, 'must be int, not bool'),
    ],
)
def test_assigned_number_is_checked(
    name: str, value: object, kind: type[Exception], text: str
) -> None:
    ctx = stream_message_ctx('a', publish_id=10)
    with pytest.raises(RbFlyError, match=f'^{name} {text}$') as caught:
        setattr(ctx, name, value)
    assert isinstance(caught.value, kind)
    assert (ctx.stream_publish_id, ctx.stream_offset) == (10, 0)


@pytest.mark.parametrize('value', ['1', None, True, [1]])
def test_timestamp_is_checked(value: Any) -> None:
    ctx = MessageCtx('a', stream_timestamp=1)
    for attempt in (
        lambda: MessageCtx('a', stream_timestamp=value),
        lambda: setattr(ctx, 'stream_timestamp', value),
    ):
        with pytest.raises(AMQPEncoderTypeError, match='stream_timestamp must be float, not'):
            attempt()
    assert ctx.stream_timestamp == 1.0


def test_timestamp_out_of_range() -> None:
    with pytest.raises(AMQPEncoderOverflowError, match='stream_timestamp'):
        MessageCtx('a', stream_timestamp=10**400)


# --- original bytes ---


@pytest.mark.parametrize('data', ['a', 5, None, [1]])
def test_decoding_other_types_is_refused(data: Any) -> None:
    with pytest.raises(MessageTypeError, match=r'not (str|int|NoneType|list)'):
        decode_amqp(data)


COPIES: dict[str, Callable[[MessageCtx], MessageCtx]] = {
    'copy': copy.copy,
    'deepcopy': copy.deepcopy,
    'pickle': lambda ctx: pickle.loads(pickle.dumps(ctx)),
}
each_copy = pytest.mark.parametrize('copied', COPIES.values(), ids=list(COPIES))


@each_copy
@pytest.mark.parametrize('body', [b'a', {'a': [1, 2]}])
def test_copy_keeps_bytes(copied: Callable[[MessageCtx], MessageCtx], body: Any) -> None:
    data = encode_amqp_bytes(stream_message_ctx(body, app_properties={'k': 1}))
    ctx = decode_amqp(data)
    other = copied(ctx)
    assert other.raw is not None
    assert other.raw.tobytes() == data
    assert (other.body, other.app_properties, other.annotations) == (body, {'k': 1}, {})


@each_copy
def test_copy_of_a_changed_message(copied: Callable[[MessageCtx], MessageCtx]) -> None:
    ctx = decode_amqp(encode_amqp_bytes(stream_message_ctx('a', app_properties={'k': 1})))
    ctx.body = 'b'
    ctx.app_properties = None
    other = copied(ctx)
    assert (other.body, other.app_properties) == ('b', {})
    assert encode_amqp_bytes(other) == encode_amqp_bytes(ctx)


@each_copy
def test_copy_of_a_message_to_send(copied: Callable[[MessageCtx], MessageCtx]) -> None:
    assert copied(stream_message_ctx('a')).raw is None


def test_pickle_without_original_bytes() -> None:
    reduced: Any = stream_message_ctx('a', publish_id=10).__reduce__()
    kind, arguments = reduced
    assert arguments[0] is None
    assert kind(*arguments) == stream_message_ctx('a', publish_id=10)


# --- the last message received by a task ---


def test_no_message_received() -> None:
    with pytest.raises(RbFlyError, match='has received no message') as caught:
        contextvars.Context().run(get_message_ctx)
    assert isinstance(caught.value, LookupError)


def test_body_without_a_view() -> None:
    with pytest.raises(RbFlyError, match='a body of type str is not binary') as caught:
        stream_message_ctx('a').body_view()
    assert isinstance(caught.value, TypeError)


def test_set_message_ctx_of_wrong_type() -> None:
    def get() -> None:
        set_message_ctx(5)  # type: ignore[arg-type]
        with pytest.raises(RbFlyError, match='no message') as caught:
            get_message_ctx()
        assert isinstance(caught.value, LookupError)

    contextvars.Context().run(get)
