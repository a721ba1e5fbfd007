# cython: language_level=3str
"""Target: decode arbitrary bytes as the body of any frame, of the client or the broker."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t

from fuzz.checks cimport finding

from rbfly.error import FrameError
from rbfly.protocol.commands import READERS, Reader
from rbfly.protocol.message_frames import decode
from rbfly.testing.arguments import Crash
from rbfly.testing.frames import read_frame, read_publish

cdef extern from *:
    """extern uint8_t fuzz_coverage[1 << 12];"""
    uint8_t fuzz_coverage[1 << 12]

cdef list KINDS = sorted(READERS)


cdef int record(tuple place) except -1:
    fuzz_coverage[<size_t> hash(place) & 0xfff] += 1
    return 0


cdef tuple lines(object error):
    """Line numbers of the traceback."""
    cdef list numbers = []
    trace = error.__traceback__
    while trace is not None:
        numbers.append(trace.tb_lineno)
        trace = trace.tb_next
    return tuple(numbers)


cdef object read(bytes frame):
    key, version = int.from_bytes(frame[4:6], 'big'), int.from_bytes(frame[6:8], 'big')
    if int.from_bytes(frame[:4], 'big') != len(frame) - 4:
        finding(f'frame of {len(frame)} bytes declares another size: {frame[:8].hex()}')
    return decode(key, version, Reader(frame[8:], True))


cdef int check(int key, int version, bytes body) except -1:
    try:
        command = decode(key, version, Reader(body, True))
    except FrameError as ex:
        record((key, version, *lines(ex)))
        return 0
    frame = command.encode()
    record((key, version, len(frame).bit_length()))
    again = read(frame)
    if again != command:
        finding(f'round trip changes {command!r} to {again!r}')
    if again.encode() != frame:
        finding(f'encoding {command!r} again gives different bytes')
    return 0


cdef api int target(const uint8_t *data, Py_ssize_t size) except -1:
    if size < 1:
        return 0
    key, version = KINDS[data[0] % len(KINDS)]
    body = PyBytes_FromStringAndSize(<const char *> data + 1, size - 1)
    check(key, version, body)
    for read, arguments in ((read_frame, (key, version, body)), (read_publish, (body,))):
        try:
            read(*arguments)
        except (FrameError, Crash):
            pass
    return 0
