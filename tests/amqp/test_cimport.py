"""Use the codec from other Cython code: compile and call what the `.pxd` files declare."""

import importlib.util
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
from setuptools import Extension
from setuptools.dist import Distribution

import rbfly
from rbfly.amqp import MessageCtx, decode_amqp, encode_amqp_bytes, stream_message_ctx
from rbfly.error import AMQPDecoderError, AMQPEncoderTypeError

SOURCE = """# cython: language_level=3str
from libc.stdint cimport uint8_t
from cpython.bytes cimport PyBytes_AS_STRING

from rbfly._wire cimport OutBuffer, out_discard, out_finish, out_open, put_u8
from rbfly.amqp._codec cimport decode_body, decode_context, encode_message
from rbfly.amqp._decode cimport Cursor, cursor_open, decode_value
from rbfly.amqp._encode cimport encode_value
from rbfly.amqp._message cimport Message
from rbfly.amqp._types cimport Symbol


def write(message):
    cdef OutBuffer out
    out_open(&out, 1)
    try:
        encode_message(&out, message)
    except:
        out_discard(&out)
        raise
    return out_finish(&out)


def write_value(value):
    cdef OutBuffer out
    out_open(&out, 1)
    encode_value(&out, value, 0)
    return out_finish(&out)


def read_value(bytes data):
    cdef Cursor c
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(data)
    cursor_open(&c, p, p, p + len(data))
    return decode_value(&c, 0)


def body(bytes data, Py_ssize_t start, Py_ssize_t n):
    return decode_body(<const uint8_t *> PyBytes_AS_STRING(data) + start, n)


def context(bytes data, Py_ssize_t start, Py_ssize_t n):
    cdef Message ctx = decode_context(
        data, <const uint8_t *> PyBytes_AS_STRING(data) + start, n, 7, 1.5
    )
    return ctx, ctx.take_body(), ctx.stream_publish_id, ctx.is_set_stream_publish_id


def name(Symbol symbol):
    return symbol.name
"""


@pytest.fixture(scope='module')
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    from Cython.Build import cythonize

    folder = tmp_path_factory.mktemp('cimport')
    source = folder / 'uses_codec.pyx'
    source.write_text(SOURCE)
    package = Path(rbfly.__path__[0]).parent
    extensions = cythonize(  # type: ignore[no-untyped-call]
        [Extension('uses_codec', [str(source)], extra_compile_args=['-O1', '-w'])],
        include_path=[str(package)],
        quiet=True,
    )
    distribution = Distribution({'ext_modules': extensions})
    command = distribution.get_command_obj('build_ext')
    command.build_lib, command.build_temp = str(folder), str(folder / 'temp')
    command.ensure_finalized()
    command.run()
    path = folder / f'uses_codec{sysconfig.get_config_var("EXT_SUFFIX")}'
    spec = importlib.util.spec_from_file_location('uses_codec', path)
    assert spec is not None
    assert spec.loader is not None
    result = importlib.util.module_from_spec(spec)
    sys.modules['uses_codec'] = result
    spec.loader.exec_module(result)
    return result


def test_cimport(module: ModuleType) -> None:
    from rbfly.types import Symbol

    message = stream_message_ctx({'a': 1}, publish_id=9, app_properties={'k': 'v'})
    data = encode_amqp_bytes(message)
    assert module.write(message) == data
    assert module.write(b'x') == encode_amqp_bytes(b'x')
    assert module.write_value([1]) == bytes.fromhex('c003015401')
    assert module.read_value(bytes.fromhex('c003015401')) == [1]
    assert module.name(Symbol('a')) == 'a'
    padded = b'..' + data + b'.'
    assert module.body(padded, 2, len(data)) == {'a': 1}
    ctx, body, publish_id, is_set = module.context(padded, 2, len(data))
    assert isinstance(ctx, MessageCtx)
    assert body == {'a': 1}
    assert (ctx.stream_offset, ctx.stream_timestamp) == (7, 1.5)
    assert (publish_id, is_set) == (0, False)
    assert ctx.app_properties == {'k': 'v'}
    assert ctx.raw is not None
    assert bytes(ctx.raw) == data
    assert decode_amqp(data).body == body


def test_errors_propagate_through_cimport(module: ModuleType) -> None:
    with pytest.raises(AMQPEncoderTypeError):
        module.write(object())
    data = encode_amqp_bytes(stream_message_ctx(b'abc', footer={'x-a': 1}))
    for n in range(1, len(data)):
        if n == 8:
            continue
        with pytest.raises(AMQPDecoderError):
            module.body(data, 0, n)
        with pytest.raises(AMQPDecoderError):
            module.context(data, 0, n)
    # a message that ends after its body is complete
    assert module.body(data, 0, 8) == b'abc'
