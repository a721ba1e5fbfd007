"""A minimal implementation of the RabbitMQ stream protocol over a blocking socket.

The floor lanes use it to show what a broker can do when the client does next to nothing.  The
runner uses it to count the stored messages independently of the measured libraries, which is why
nothing here imports `rbfly`.

Frames are `u32 size, u16 key, u16 version, ...` in big-endian order; the key of a response has bit
15 set.  During the handshake each frame is one write, and waits for the answer to the previous one.
"""

import socket
import ssl
import struct
import zlib
from collections.abc import Callable, Generator, Sequence

from .probe import parse_uri

DECLARE_PUBLISHER = 0x01
PUBLISH = 0x02
PUBLISH_CONFIRM = 0x03
PUBLISH_ERROR = 0x04
SUBSCRIBE = 0x07
DELIVER = 0x08
CREDIT = 0x09
UNSUBSCRIBE = 0x0C
CREATE = 0x0D
DELETE = 0x0E
METADATA = 0x0F
METADATA_UPDATE = 0x10
PEER_PROPERTIES = 0x11
SASL_HANDSHAKE = 0x12
SASL_AUTHENTICATE = 0x13
TUNE = 0x14
OPEN = 0x15
CLOSE = 0x16
STREAM_STATS = 0x1C

RESPONSE = 0x8000
OK = 0x01
NO_STREAM = 0x02
REASONS = {
    0x02: 'no such stream',
    0x08: 'wrong user or password',
    0x0C: 'no such virtual host, or no access to it',
    0x10: 'access refused',
}

GZIP = 1  # compression code of a sub-entry
OFFSET_FIRST = 1
OFFSET_NEXT = 3
OFFSET_ABSOLUTE = 4
CREDIT_AT_START = 10
FRAME_MAX = 1024 * 1024
READ_SIZE = 1024 * 1024

U16 = struct.Struct('>H')
U32 = struct.Struct('>I')
U64 = struct.Struct('>Q')
HEAD = struct.Struct('>IHH')
REPLY = struct.Struct('>IH')
CONFIRM = struct.Struct('>IHHBI')
PUBLISH_HEAD = struct.Struct('>IHHBI')
ENTRY_HEAD = struct.Struct('>QI')
CREDIT_ONE = struct.Struct('>IHHBH')
SUB_ENTRY_HEAD = struct.Struct('>BHII')
# Deliver v1 up to the chunk id: size, key, version, subscription, then magic, type, entries,
# records, timestamp, epoch, chunk id.
CHUNK_HEAD = struct.Struct('>IHHBBBHIqQQ')
# The complete chunk header: ..., chunk id, CRC, size of the data, size of the trailer, filter.
CHUNK = struct.Struct('>BBHIqQQIIII')


class WireError(Exception):
    """The broker refused a request or closed the connection."""


def string(text: str) -> bytes:
    data = text.encode()
    return U16.pack(len(data)) + data


def mapping(items: dict[str, str]) -> bytes:
    return U32.pack(len(items)) + b''.join(string(k) + string(v) for k, v in items.items())


def frame(key: int, body: bytes) -> bytes:
    return HEAD.pack(len(body) + 4, key, 1) + body


def data_section(body: bytes) -> bytes:
    """Encode a byte string as an AMQP 1.0 message with only a data section."""
    if len(body) < 256:
        return b'\x00\x53\x75\xa0' + bytes((len(body),)) + body
    return b'\x00\x53\x75\xb0' + U32.pack(len(body)) + body


def publish_frame(publisher: int, first_id: int, messages: Sequence[bytes]) -> bytes:
    """Encode a Publish v1 frame from encoded messages."""
    body = b''.join(
        ENTRY_HEAD.pack(first_id + i, len(message)) + message for i, message in enumerate(messages)
    )
    return PUBLISH_HEAD.pack(len(body) + 9, PUBLISH, 1, publisher, len(messages)) + body


def publish_frames(bodies: Sequence[bytes], size: int, first_id: int = 0) -> list[bytes]:
    """Encode Publish frames of publisher 0 with `size` messages each."""
    return [
        publish_frame(0, first_id + i, [data_section(body) for body in bodies[i : i + size]])
        for i in range(0, len(bodies), size)
    ]


def sub_entry(
    messages: Sequence[bytes], code: int = 0, compress: Callable[[bytes], bytes] = bytes
) -> bytes:
    """Encode a sub-entry from encoded messages.

    :param code: compression code; 0 for none.
    """
    data = b''.join(U32.pack(len(message)) + message for message in messages)
    found = compress(data)
    return SUB_ENTRY_HEAD.pack(0x80 | code << 4, len(messages), len(data), len(found)) + found


def entries_frame(entries: Sequence[bytes]) -> bytes:
    """Encode a Publish frame of publisher 0 from entries that include their publishing ids."""
    body = b''.join(entries)
    return PUBLISH_HEAD.pack(len(body) + 9, PUBLISH, 1, 0, len(entries)) + body


def sub_entry_frames(
    bodies: Sequence[bytes], size: int, entries: int, first_id: int = 0
) -> list[bytes]:
    """Encode Publish frames of publisher 0 with `entries` sub-entries of `size` messages each."""
    messages = [data_section(body) for body in bodies]
    parts = [
        U64.pack(first_id + i) + sub_entry(messages[start : start + size])
        for i, start in enumerate(range(0, len(messages), size))
    ]
    return [
        entries_frame(parts[start : start + entries]) for start in range(0, len(parts), entries)
    ]


def confirmed(data: bytes) -> tuple[int, int]:
    """Read the complete frames in `data`; return the messages confirmed and the bytes read."""
    count = pos = 0
    end = len(data)
    while end - pos >= 13:
        size, key, _, _, n = CONFIRM.unpack_from(data, pos)
        if pos + 4 + size > end:
            break
        if key == PUBLISH_CONFIRM:
            count += n
        else:
            refuse(key, data[pos + 8 : pos + 4 + size])
        pos += 4 + size
    return count, pos


def refuse(key: int, body: bytes) -> None:
    """Raise an error for frames that make the work fail; ignore others."""
    if key == PUBLISH_ERROR:
        code = U16.unpack_from(body, 13)[0]
        raise WireError(f'broker refused a message, code {code:#04x}')
    if key == CLOSE:
        raise WireError(f'broker closed the connection: {body[8:].decode(errors="replace")}')
    if key == SUBSCRIBE | RESPONSE and REPLY.unpack_from(body, 0)[1] != OK:
        raise WireError('broker refused a subscription')
    if key == METADATA_UPDATE:
        raise WireError('the stream became unavailable')


class Connection:
    """An open connection without heartbeats, so it may stay idle.

    :param ca_file: certificate of the authority to trust; only needed with TLS.
    """

    def __init__(
        self, uri: str, name: str = 'perf', timeout: float | None = 30, ca_file: str = ''
    ) -> None:
        self.address = address = parse_uri(uri)
        if address.tls and not ca_file:
            raise WireError(f'{address} uses TLS: pass the certificate of its authority')
        self.rest = b''
        try:
            self.socket: socket.socket = socket.create_connection(
                (address.host, address.port), timeout=timeout
            )
        except OSError as ex:
            raise WireError(
                f'cannot connect to the broker at {address.host}:{address.port} ({ex})'
            ) from None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if address.tls:
                context = ssl.create_default_context(cafile=ca_file)
                self.socket = context.wrap_socket(self.socket, server_hostname=address.host)
            self._handshake(name)
        except BaseException:
            self.socket.close()
            raise

    def _handshake(self, name: str) -> None:
        address = self.address
        self.request(PEER_PROPERTIES, mapping({'connection_name': name}))
        self.request(SASL_HANDSHAKE, b'')
        secret = f'\0{address.user}\0{address.password}'.encode()
        self.request(SASL_AUTHENTICATE, string('PLAIN') + U32.pack(len(secret)) + secret)
        self.read(TUNE)
        self.socket.sendall(frame(TUNE, struct.pack('>II', FRAME_MAX, 0)))
        self.request(OPEN, string(address.vhost))

    def close(self) -> None:
        """Send Close and close the socket."""
        try:
            self.request(CLOSE, U16.pack(OK) + string('done'))
        except (OSError, WireError):
            pass
        finally:
            self.socket.close()

    # -- requests

    def create_stream(self, stream: str, arguments: dict[str, str] | None = None) -> None:
        self.request(CREATE, string(stream) + mapping(arguments or {}))

    def delete_stream(self, stream: str) -> None:
        """Delete the stream if it exists."""
        self.request(DELETE, string(stream), NO_STREAM)

    def declare_publisher(self, stream: str, reference: str = '', number: int = 0) -> None:
        """Declare a publisher; with a reference the broker discards duplicates."""
        self.request(DECLARE_PUBLISHER, bytes((number,)) + string(reference) + string(stream))

    def leader(self, stream: str) -> tuple[tuple[str, int] | None, int]:
        """Query the advertised address of a stream's leader, if any, and the number of replicas."""
        self.socket.sendall(frame(METADATA, U32.pack(1) + U32.pack(1) + string(stream)))
        body = self.read(METADATA | RESPONSE)
        nodes = {}
        pos = 8
        for _ in range(U32.unpack_from(body, 4)[0]):
            node, size = struct.unpack_from('>HH', body, pos)
            pos += 4 + size
            nodes[node] = body[pos - size : pos].decode(), U32.unpack_from(body, pos)[0]
            pos += 4
        pos += 4 + len(string(stream))
        _, leader, replicas = struct.unpack_from('>HHI', body, pos)
        return nodes.get(leader), replicas

    def subscribe(self, stream: str, offset: int | None = None, start: int = OFFSET_FIRST) -> None:
        """Start subscription 0 at an offset, by default the first, with 10 chunks of credit."""
        spec = U16.pack(start) if offset is None else struct.pack('>HQ', OFFSET_ABSOLUTE, offset)
        self.request(SUBSCRIBE, b'\x00' + string(stream) + spec + U16.pack(CREDIT_AT_START))

    def start_subscription(self, stream: str, number: int) -> None:
        """Start a subscription at the first message; `chunks` handles the response."""
        spec = U16.pack(OFFSET_FIRST) + U16.pack(CREDIT_AT_START)
        body = U32.pack(1) + bytes((number,)) + string(stream) + spec
        self.socket.sendall(frame(SUBSCRIBE, body))

    def unsubscribe(self, number: int = 0) -> None:
        """End a subscription and discard chunks that are still in flight."""
        self.request(UNSUBSCRIBE, bytes((number,)))

    def stats(self, stream: str) -> dict[str, int]:
        """Query the first, last and committed chunk ids, which are -1 in an empty stream."""
        body = self.request(STREAM_STATS, string(stream))
        values = {}
        pos = 4
        for _ in range(U32.unpack_from(body, 0)[0]):
            size = U16.unpack_from(body, pos)[0]
            key = body[pos + 2 : pos + 2 + size].decode()
            pos += 2 + size
            values[key] = struct.unpack_from('>q', body, pos)[0]
            pos += 8
        return values

    def request(self, key: int, body: bytes, *also: int) -> bytes:
        """Send a request; return the bytes after the response code."""
        self.socket.sendall(frame(key, U32.pack(1) + body))
        answer = self.read(key | RESPONSE)
        code = REPLY.unpack_from(answer, 0)[1]
        if code != OK and code not in also:
            reason = REASONS.get(code, 'refused')
            raise WireError(f'{reason} (code {code:#04x} in response to request {key:#06x})')
        return answer[6:]

    def read(self, wanted: int) -> bytes:
        """Return the body of the next frame with this key; discard other frames."""
        while True:
            data = self.rest
            while len(data) < 8 or len(data) < 4 + U32.unpack_from(data, 0)[0]:
                data += self.receive()
            size, key, _ = HEAD.unpack_from(data, 0)
            self.rest = data[4 + size :]
            if key & ~RESPONSE == wanted & ~RESPONSE and key != CLOSE:
                return data[8 : 4 + size]
            refuse(key, data[8 : 4 + size])

    def receive(self) -> bytes:
        data = self.socket.recv(65536)
        if not data:
            raise WireError('broker closed the connection')
        return data

    def receive_into(self, view: memoryview) -> int:
        n = self.socket.recv_into(view)
        if not n:
            raise WireError('broker closed the connection')
        return n

    # -- the work of the floor lanes

    def read_confirms(self) -> int:
        """Receive data once; return the number of messages that it confirms."""
        data = self.rest + self.receive()
        count, used = confirmed(data)
        self.rest = data[used:]
        return count

    def publish(self, frames: Sequence[bytes], size: int, window: int) -> int:
        """Send frames of `size` messages with at most `window` messages in flight.

        Returns the number of confirmed messages once all are confirmed.
        """
        send = self.socket.sendall
        limit = window - size
        pending = 0
        for data in frames:
            send(data)
            pending += size
            while pending > limit:
                pending -= self.read_confirms()
        while pending > 0:
            pending -= self.read_confirms()
        return size * len(frames) - pending

    def read_messages(self, count: int) -> int:
        """Read chunks until they hold `count` messages; return how many they hold."""
        total = 0
        for _, records in self.chunks():
            total += records
            if total >= count:
                break
        return total

    def chunks(self) -> Generator[tuple[int, int], None, None]:
        """Yield the chunk id and record count of every Deliver, without parsing its entries.

        The credit that a chunk uses is renewed at once.
        """
        credit = [CREDIT_ONE.pack(7, CREDIT, 1, number, 1) for number in range(256)]
        sock = self.socket
        buffer = bytearray(max(READ_SIZE, 2 * len(self.rest)))
        view = memoryview(buffer)
        pos, end = 0, len(self.rest)
        buffer[:end] = self.rest
        try:
            while True:
                while end - pos >= 8:
                    size, key, _ = HEAD.unpack_from(buffer, pos)
                    over = pos + 4 + size - end
                    if key == DELIVER and end - pos >= CHUNK_HEAD.size:
                        _, _, _, number, *_, records, _, _, chunk_id = CHUNK_HEAD.unpack_from(
                            buffer, pos
                        )
                        sock.sendall(credit[number])
                        if over > 0:
                            pos = end = 0
                            while over:
                                over -= self.receive_into(view[:over])
                        else:
                            pos += 4 + size
                        yield chunk_id, records
                    elif over > 0:
                        break
                    else:
                        refuse(key, bytes(view[pos + 8 : pos + 4 + size]))
                        pos += 4 + size
                if pos:
                    view[: end - pos] = view[pos:end]
                    pos, end = 0, end - pos
                end += self.receive_into(view[end:])
        finally:
            self.rest = bytes(view[pos:end])


def read_chunk(data: bytes) -> tuple[int, list[bytes]]:
    """Return the id of a chunk and its messages, including those in sub-entries."""
    _, _, count, records, _, _, chunk_id, crc, size, _, _ = CHUNK.unpack_from(data)
    pos = CHUNK.size
    if len(data) != pos + size or zlib.crc32(data[pos:]) != crc:
        raise WireError(f'chunk {chunk_id} has a wrong size or CRC')
    messages: list[bytes] = []
    for _ in range(count):
        if data[pos] & 0x80:
            pos = read_sub_entry(data, pos, messages)
        else:
            pos = read_messages(data, pos, 1, messages)
    if pos != len(data) or len(messages) != records:
        raise WireError(f'chunk {chunk_id} contains {len(messages)} messages instead of {records}')
    return chunk_id, messages


def read_messages(data: bytes, pos: int, count: int, found: list[bytes]) -> int:
    """Append `count` messages to `found`; return the position after them."""
    for _ in range(count):
        size: int = U32.unpack_from(data, pos)[0]
        found.append(data[pos + 4 : pos + 4 + size])
        pos += 4 + size
    return pos


def read_sub_entry(data: bytes, pos: int, found: list[bytes]) -> int:
    """Append the messages of a sub-entry, plain or gzip; return the position after it."""
    head, records, size, stored = SUB_ENTRY_HEAD.unpack_from(data, pos)
    pos += SUB_ENTRY_HEAD.size
    end: int = pos + stored
    plain = data[pos:end]
    if code := head >> 4 & 7:
        if code != GZIP:
            raise WireError(f'sub-entry has unsupported compression code {code}')
        plain = zlib.decompress(plain, 16 + zlib.MAX_WBITS)
    if len(plain) != size or read_messages(plain, 0, records, found) != size:
        raise WireError('sub-entry does not match its size or record count')
    return end
