"""Helpers of the codec tests: encode and decode single values, and load the golden vectors."""

import ast
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rbfly.types as t
from rbfly.amqp import decode_amqp, encode_amqp_bytes

VALUE = bytes.fromhex('005377')
SECTIONS = (
    'body',
    'header',
    'delivery_annotations',
    'annotations',
    'properties',
    'app_properties',
    'footer',
)


def encode_value(value: Any) -> bytes:
    """Encode a single value, as it is encoded inside a list."""
    data = encode_amqp_bytes([value])
    assert data[:3] == VALUE
    assert data[3] in (0xC0, 0xD0)
    return data[6:] if data[3] == 0xC0 else data[12:]


def decode_value(data: bytes) -> Any:
    return decode_amqp(VALUE + data).body


class Data:
    """Type codes, by their names in the vectors."""

    NULL = type(None)
    BOOL = bool
    UINT = t.UInt
    INT = t.Int
    LONG = t.Long
    STRING = str
    SYMBOL = t.Symbol
    LIST = list
    ARRAY = t.AMQPArray


UNDESCRIBED = object()


def array(descriptor: Any, element_type: type, *items: Any) -> t.AMQPArray:
    descriptors = () if descriptor is UNDESCRIBED else (descriptor,)
    return t.AMQPArray(element_type, items, descriptors=descriptors)


NAMES: dict[str, Any] = {
    'ubyte': t.UByte,
    'ushort': t.UShort,
    'uint': t.UInt,
    'ulong': t.ULong,
    'byte': t.Byte,
    'short': t.Short,
    'int32': t.Int,
    'long_': t.Long,
    'float32': t.Float32,
    'char': t.Char,
    'timestamp': t.Timestamp,
    'symbol': t.Symbol,
    'decimal32': lambda v: t.Decimal32(v.to_bytes(4, 'big')),
    'decimal64': lambda v: t.Decimal64(v.to_bytes(8, 'big')),
    'decimal128': lambda v: t.Decimal128(v.to_bytes(16, 'big')),
    'Described': t.Described,
    'Array': array,
    'UNDESCRIBED': UNDESCRIBED,
    'Data': Data,
    'uuid': uuid,
    'float': float,
}


class PlainIntegers(ast.NodeTransformer):
    """Wraps plain integers in the vectors' expressions as long."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id not in ('Array', 'Described'):
            return node
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        # in a repetition such as [None]*255, the count is not a value
        node.left = self.visit(node.left)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        return self.wrap(node) if isinstance(node.operand, ast.Constant) else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self.wrap(node) if type(node.value) is int else node

    @staticmethod
    def wrap(node: ast.expr) -> ast.AST:
        value = ast.literal_eval(node)
        if type(value) is not int:
            return node
        return ast.Call(func=ast.Name(id='long_', ctx=ast.Load()), args=[node], keywords=[])


def python_value(expression: str) -> Any:
    tree = ast.fix_missing_locations(PlainIntegers().visit(ast.parse(expression, mode='eval')))
    return eval(compile(tree, expression, 'eval'), NAMES)


def load_vectors() -> list[dict[str, str | None]]:
    path = Path(__file__).parent.parent / 'data' / 'amqp10-vectors.json'
    vectors: list[dict[str, str | None]] = json.loads(path.read_text())
    return vectors


VECTORS = load_vectors()
MESSAGES = [v for v in VECTORS if str(v['name']).startswith(('section ', 'message ', 'stored '))]
MALFORMED = [v for v in VECTORS if str(v['name']).startswith('bad ')]
# What other clients write, or RabbitMQ passes on; see test_tolerance.py.
TOLERATED = {
    'bad empty input as value',
    'bad utf8 lone continuation',
    'bad utf8 surrogate',
    'bad symbol non-ascii',
    'bad array no constructor',
    'bad two properties',
    'bad properties after body',
    'bad data with string',
}
REFUSED = [v for v in MALFORMED if v['name'] not in TOLERATED]
VALUES = [v for v in VECTORS if v not in MESSAGES and v not in MALFORMED]


def vector_name(vector: dict[str, str | None]) -> str:
    return str(vector['name'])


def outcome(function: Callable[[], Any]) -> str:
    """Return the result or the error as text, to compare two decoders."""
    try:
        return repr(function())
    except Exception as ex:
        return type(ex).__name__
