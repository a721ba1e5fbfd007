"""Reads the published and confirmed messages that pass a proxy."""

from brokers import wire
from brokers.proxy import Direction, Proxy

from .test_bed import WIDTH


class Tap:
    """The published and confirmed messages that have passed a proxy.

    :ivar confirmed: whether the broker has confirmed a message, by its number.
    :ivar published: number of published messages.
    :ivar reused: publishing ids not above the previous one, with the numbers of their messages.
    """

    def __init__(self, proxy: Proxy, total: int) -> None:
        self.confirmed = bytearray(total)
        self.published = 0
        self.reused: list[tuple[int, int]] = []
        self._rest: dict[tuple[int, Direction], bytes] = {}
        self._numbers: dict[tuple[int, int], dict[int, int]] = {}
        self._last: dict[tuple[int, int], int] = {}
        proxy.watch = self

    def __call__(self, link: int, direction: Direction, data: bytes) -> None:
        data = self._rest.get((link, direction), b'') + data
        pos = 0
        while len(data) - pos >= wire.HEAD.size:
            size, key, _ = wire.HEAD.unpack_from(data, pos)
            end = pos + 4 + size
            if end > len(data):
                break
            if key == wire.PUBLISH and direction == 'up':
                self._publish(link, data, pos)
            elif key == wire.PUBLISH_CONFIRM and direction == 'down':
                self._confirm(link, data, pos)
            pos = end
        self._rest[link, direction] = data[pos:]

    def _publish(self, link: int, data: bytes, pos: int) -> None:
        *_, publisher, count = wire.PUBLISH_HEAD.unpack_from(data, pos)
        key = link, publisher
        numbers = self._numbers.setdefault(key, {})
        last = self._last.get(key, -1)
        pos += wire.PUBLISH_HEAD.size
        for _ in range(count):
            publishing_id, size = wire.ENTRY_HEAD.unpack_from(data, pos)
            pos += wire.ENTRY_HEAD.size + size
            number = int(data[pos - WIDTH : pos])
            if publishing_id <= last:
                self.reused.append((publishing_id, number))
            last = publishing_id
            numbers[publishing_id] = number
        self._last[key] = last
        self.published += count

    def _confirm(self, link: int, data: bytes, pos: int) -> None:
        *_, publisher, count = wire.CONFIRM.unpack_from(data, pos)
        numbers = self._numbers[link, publisher]
        pos += wire.CONFIRM.size
        for i in range(count):
            number = numbers.pop(int.from_bytes(data[pos + 8 * i : pos + 8 * i + 8], 'big'), None)
            if number is not None:
                self.confirmed[number] = 1
