"""Decode all vectors, also truncated and corrupted, from memory of exactly their size.

The results must be those of decoding `bytes`; `make sanitize` also detects invalid reads.
"""

import gc

import pytest
from amqp_values import MALFORMED, MESSAGES, SECTIONS, VALUE, VECTORS, vector_name
from exact import exact

from rbfly.amqp import decode_amqp
from rbfly.error import AMQPDecoderError
from tests.sizes import sized

EMPTY_DATA = bytes.fromhex('005375a000')


def inputs(vector: dict[str, str | None]) -> list[bytes]:
    data = bytes.fromhex(str(vector['hex']))
    if vector in MESSAGES:
        return [data, data + EMPTY_DATA]
    if vector in MALFORMED:
        return [data, data + EMPTY_DATA, VALUE + data]
    return [VALUE + data]


def read(data: bytes | memoryview) -> list[str]:
    """Each part of a message, or the error that decoding it raises."""
    try:
        ctx = decode_amqp(data)
    except AMQPDecoderError as ex:
        return [str(ex)]
    parts = []
    for name in SECTIONS:
        try:
            parts.append(repr(getattr(ctx, name)))
        except AMQPDecoderError as ex:
            parts.append(str(ex))
    try:
        parts.append(decode_amqp(data).body_view().hex())
    except (TypeError, AMQPDecoderError) as ex:
        parts.append(str(ex))
    assert ctx.raw == data
    return parts


@pytest.mark.parametrize('size', [0, 1, 2, 7, 8, 9, 255, 4096])
def test_exact(size: int) -> None:
    data = bytes(i & 0xFF for i in range(size))
    view = exact(data)
    assert view == data
    assert view.readonly
    part = view[size // 2 :]
    del view
    gc.collect()
    assert part == data[size // 2 :]


@pytest.mark.parametrize('vector', VECTORS, ids=vector_name)
def test_truncated(vector: dict[str, str | None]) -> None:
    for data in inputs(vector):
        for n in range(len(data) + 1):
            assert read(exact(data[:n])) == read(data[:n])


@pytest.mark.parametrize('vector', VECTORS, ids=vector_name)
def test_flipped(vector: dict[str, str | None]) -> None:
    for data in inputs(vector):
        step = 1 if len(data) < 400 else sized(7, 1)  # levels of one depth bomb are alike
        for i in range(0, len(data), step):
            for mask in (0xFF, 0x01, 0x10, 0x80):
                other = data[:i] + bytes([data[i] ^ mask]) + data[i + 1 :]
                assert read(exact(other)) == read(other)
