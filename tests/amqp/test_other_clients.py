"""Messages encoded by other implementations.

The file (xz) names the library of each message and gives its contents as Python expressions.
"""

import json
import lzma
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from amqp_values import SECTIONS

import rbfly.amqp
import rbfly.types as t
from rbfly.amqp import MessageCtx, decode_amqp, encode_amqp_bytes, stream_message_ctx


def load_clients() -> list[dict[str, Any]]:
    path = Path(__file__).parent.parent / 'data' / 'amqp10-clients.json.xz'
    messages: list[dict[str, Any]] = json.loads(lzma.decompress(path.read_bytes()))
    return messages


CLIENTS = load_clients()
NAMES = {**vars(rbfly.amqp), **vars(t), 'UTC': UTC, 'datetime': datetime, 'UUID': UUID}


def client_name(message: dict[str, Any]) -> str:
    return f'{message["library"]}: {message["name"]}'


def content(message: dict[str, Any]) -> MessageCtx:
    sections = {name: eval(text, NAMES) for name, text in message['content'].items()}
    return stream_message_ctx(**sections)


def equal_in_value_and_type(a: Any, b: Any) -> bool:
    """Whether values and types are equal, recursively."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        keys = {key: type(key) for key in a} == {key: type(key) for key in b}
        return keys and all(equal_in_value_and_type(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal_in_value_and_type, a, b))
    return bool(a == b)


def assert_same(received: MessageCtx, expected: MessageCtx) -> None:
    for name in SECTIONS:
        a, b = getattr(received, name), getattr(expected, name)
        assert equal_in_value_and_type(a, b), name
        if isinstance(a, rbfly.amqp.SequenceBody | rbfly.amqp.DataBody):
            assert a.sections == b.sections


def test_all_implementations_are_present() -> None:
    made_by = {message['library'].split()[0] for message in CLIENTS}
    assert made_by == {'rabbitmq-stream-go-client', 'com.rabbitmq:stream-client', 'RabbitMQ'}


@pytest.mark.parametrize('message', CLIENTS, ids=client_name)
def test_message_of_other_client(message: dict[str, Any]) -> None:
    expected = content(message)
    received = decode_amqp(bytes.fromhex(message['hex']))
    assert_same(received, expected)
    assert_same(decode_amqp(encode_amqp_bytes(received)), expected)
    # our encoding of the same values decodes to the same message
    assert_same(decode_amqp(encode_amqp_bytes(expected)), expected)
