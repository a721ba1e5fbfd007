"""Frames that carry messages or confirms, and the decoder of any frame, for brokers.

The client reads and writes these frames with compiled code, see `_frames` and `_engine`.
"""

from ..error import FrameError, counted
from .chunks import Entries, FilteredEntries
from .commands import READERS, OneWay, Request, Response
from .const import Key
from .fields import U8, U16, U64, Reader, Rest


class Publish(OneWay, key=Key.PUBLISH):
    publisher_id: U8
    entries: Entries


class PublishV2(OneWay, key=Key.PUBLISH, version=2):
    publisher_id: U8
    entries: FilteredEntries


class PublishConfirm(OneWay, key=Key.PUBLISH_CONFIRM):
    publisher_id: U8
    publishing_ids: tuple[U64, ...]


class PublishError(OneWay, key=Key.PUBLISH_ERROR):
    """Publishing ids that were not stored, with the reasons."""

    publisher_id: U8
    errors: tuple[tuple[U64, U16], ...]


class Deliver(OneWay, key=Key.DELIVER):
    subscription_id: U8
    chunk: Rest


class DeliverV2(OneWay, key=Key.DELIVER, version=2):
    subscription_id: U8
    committed_chunk_id: U64
    chunk: Rest


def decode(key: int, version: int, reader: Reader) -> Request | Response | OneWay:
    """Decode a frame; `encode()` of the result returns the same bytes.

    :raises FrameError: the key and version are unknown, or the fields are malformed.
    """
    read = READERS.get((key, version))
    if read is None:
        raise FrameError(f'frame 0x{key:04x} version {version} is unknown')
    found = read(reader)
    if not reader.at_end:
        left = counted(reader.left, 'byte')
        raise FrameError(f'frame 0x{key:04x} has {left} after its fields')
    return found
