"""How `rbfly tail` writes a message."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from rbfly.streams import Message, Symbol

from .output import escaped

Format = Callable[[Message], bytes]

NAMES = ('text', 'json', 'hex')
PROPERTIES = (
    'message_id', 'user_id', 'to', 'subject', 'reply_to', 'correlation_id', 'content_type',
    'content_encoding', 'absolute_expiry_time', 'creation_time', 'group_id', 'group_sequence',
    'reply_to_group_id',
)  # fmt: skip
DIRECTIVE = re.compile(r'%(.?)|\\(x[0-9a-fA-F]{2}|.?)', re.DOTALL)
ESCAPES = {'n': '\n', 't': '\t', 'r': '\r', '0': '\0', '\\': '\\'}


def body_bytes(message: Message) -> bytes:
    """Return the body as bytes: a string as UTF-8, a value that is no text as JSON."""
    body = body_of(message)
    if isinstance(body, bytes):
        return bytes(body)
    if isinstance(body, str):
        return body.encode(errors='surrogatepass')
    return to_json(body)


def body_text(message: Message) -> str:
    """Return the body as text; bytes that are not UTF-8 as in arguments of the command."""
    return body_bytes(message).decode(errors='surrogateescape')


def body_of(message: Message) -> Any:
    """Return the body; the bytes of a message that is not AMQP 1.0."""
    if message.decode_error is not None:
        assert message.raw is not None
        return bytes(message.raw)
    return message.body


def to_json(value: object) -> bytes:
    text = json.dumps(plain(value), ensure_ascii=False, separators=(', ', ': '))
    return text.encode(errors='surrogatepass')


def plain(value: Any) -> Any:
    """Return a value of AMQP 1.0 in the types of JSON."""
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return 'base64:' + b64encode(value).decode()
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            return value if value - value == 0 else str(value)  # JSON has no infinity
        case Mapping():
            return {text_of(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case Symbol():
            return value.name
        case datetime():
            return iso(value)
        case UUID():
            return str(value)
    if hasattr(value, 'items') and not callable(value.items):  # an array
        return [plain(item) for item in value.items]
    return str(value)


def text_of(value: object) -> str:
    """Return a key, or a filter value, as a string: as JSON if it is no text."""
    found = plain(value)
    if isinstance(found, str):
        return found
    return json.dumps(found, ensure_ascii=False, sort_keys=True)


def iso(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec='milliseconds').replace('+00:00', 'Z')


def stored_at(message: Message) -> str:
    """Return when the broker wrote the chunk of a message."""
    return iso(datetime.fromtimestamp(message.stream_timestamp, UTC))


def properties_of(message: Message) -> dict[str, Any]:
    """Return the properties that a message has."""
    if message.decode_error is not None:
        return {}
    found = {name: getattr(message.properties, name) for name in PROPERTIES}
    return {name: value for name, value in found.items() if value is not None}


def headers_of(message: Message) -> Mapping[str, Any]:
    return {} if message.decode_error is not None else message.app_properties


def annotations_of(message: Message) -> Mapping[Any, Any]:
    return {} if message.decode_error is not None else message.annotations


# -- formats


def as_text(message: Message) -> bytes:
    return body_bytes(message) + b'\n'


def as_lines(message: Message, *, colors: bool, with_stream: bool) -> bytes:
    """Return one line for a terminal: the offset, the time, and the body without control
    characters."""
    text = escaped(body_bytes(message).decode(errors='backslashreplace'))
    prefix = f'{message.stream_offset:>8}  {stored_at(message)}'
    if with_stream:
        prefix = f'{message.stream}  {prefix}'
    if colors:
        prefix = f'\x1b[2m{prefix}\x1b[0m'
        text = f'\x1b[31m{text}\x1b[0m' if message.decode_error is not None else text
    return f'{prefix}  {text}\n'.encode(errors='backslashreplace')


def as_json(message: Message) -> bytes:
    """Return an envelope of the message and where it is, in one line."""
    found: dict[str, Any] = {
        'stream': message.stream,
        'offset': message.stream_offset,
        'timestamp': stored_at(message),
    }
    if message.decode_error is not None:
        assert message.raw is not None
        found['error'] = str(message.decode_error)
        found['raw'] = 'base64:' + b64encode(message.raw).decode()
        return to_json(found) + b'\n'
    for name, section in (
        ('properties', properties_of(message)),
        ('app_properties', headers_of(message)),
        ('annotations', annotations_of(message)),
    ):
        if section:
            found[name] = section
    found['body'] = message.body
    return to_json(found) + b'\n'


def as_hex(message: Message) -> bytes:
    """Return the bytes of the whole message, as `hexdump -C` does."""
    data = b'' if message.raw is None else bytes(message.raw)
    kind = '' if message.decode_error is None else ', not AMQP 1.0'
    title = f'{message.stream} offset {message.stream_offset}, {stored_at(message)}'
    lines = [f'{title}, {len(data)} bytes{kind}']
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        shown = ''.join(chr(byte) if 32 <= byte < 127 else '.' for byte in part)
        lines.append(f'{start:08x}  {part[:8].hex(" "):23}  {part[8:].hex(" "):23}  |{shown}|')
    return ('\n'.join(lines) + '\n\n').encode()


DIRECTIVES: dict[str, Callable[[Message], bytes]] = {
    '%': lambda message: b'%',
    't': lambda message: str(message.stream).encode(),
    'o': lambda message: b'%d' % message.stream_offset,
    's': body_bytes,
    'S': lambda message: b'%d' % len(body_bytes(message)),
    'x': lambda message: body_bytes(message).hex().encode(),
    'j': lambda message: to_json(body_of(message)),
    'T': lambda message: b'%d' % round(message.stream_timestamp * 1000),
    'd': lambda message: stored_at(message).encode(),
    'p': lambda message: to_json(properties_of(message)),
    'h': lambda message: to_json(headers_of(message)),
    'a': lambda message: to_json(annotations_of(message)),
}


def pattern(text: str) -> Format:
    r"""Return the format of a pattern such as `%o %s\n`.

    :raises ValueError: it has an unknown directive or escape.
    """
    parts: list[bytes | Format] = []
    end = 0
    for found in DIRECTIVE.finditer(text):
        parts.append(text[end : found.start()].encode(errors='surrogateescape'))
        end = found.end()
        directive, escape = found.groups()
        if directive is not None:
            if directive not in DIRECTIVES:
                known = ' '.join(f'%{name}' for name in DIRECTIVES)
                raise ValueError(f'{found[0]!r} is unknown; there are {known}')
            parts.append(DIRECTIVES[directive])
        elif escape.startswith('x') and len(escape) == 3:
            parts.append(bytes.fromhex(escape[1:]))
        elif escape in ESCAPES:
            parts.append(ESCAPES[escape].encode())
        else:
            raise ValueError(rf'{found[0]!r} is unknown; there are \n \t \r \0 \\ and \x41')
    parts.append(text[end:].encode(errors='surrogateescape'))
    return partial(join, [part for part in parts if part])


def join(parts: list[bytes | Format], message: Message) -> bytes:
    return b''.join(part if isinstance(part, bytes) else part(message) for part in parts)


def find_format(name: str, *, terminal: bool, colors: bool, with_stream: bool) -> Format:
    """Return the format of a name, or of a pattern, which contains a `%`.

    :param terminal: people read it.
    :param with_stream: the messages come from several streams.
    :raises ValueError: there is no such format, or the pattern is wrong.
    """
    if '%' in name:
        return pattern(name)
    match name:
        case 'text' if terminal:
            return partial(as_lines, colors=colors, with_stream=with_stream)
        case 'text':
            return as_text
        case 'json':
            return as_json
        case 'hex':
            return as_hex
    raise ValueError(f'{name!r} is neither {", ".join(NAMES)} nor a pattern such as %o %s\\n')
