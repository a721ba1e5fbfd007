"""What codec lanes share: the messages, and statements for `timeit`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from timeit import Timer
from typing import Any

from ..lanes import Kind
from .base import Target, Work


@dataclass(frozen=True)
class Message:
    """A message to encode and decode.

    :ivar properties: values for the AMQP properties section.
    """

    body: Any
    properties: dict[str, str] = field(default_factory=dict)
    app_properties: dict[str, Any] = field(default_factory=dict)

    def names(self) -> dict[str, Any]:
        """What statements call the contents."""
        return {'data': self.body, 'app_properties': self.app_properties}


def document() -> dict[str, Any]:
    """Ten maps with ten values each."""
    return {
        f'item-{i}': {
            'name': f'name of item {i}',
            'count': i * 25,
            'total': 10**12 + i,
            'price': i + 0.25,
            'active': i % 2 == 0,
            'note': None,
            'tags': ['red', f'tag-{i}'],
            'place': {'x': -i, 'y': i * 1000},
        }
        for i in range(10)
    }


SEED = {'large-int': 2**31 - 1, 'small-list': [1, 2, 3], 'bin-string': b'abc'}
PROPERTIES = {
    'message_id': 'order-000123',
    'to': '/queues/orders',
    'subject': 'new order',
    'correlation_id': 'request-000456',
    'content_type': 'application/x-order',
}
APP_PROPERTIES = {
    'region': 'eu-west',
    'tenant': 'acme',
    'trace': '4bf92f3577b34da6',
    'source': 'checkout',
    'version': 3,
    'attempt': 1,
    'weight': 70_000,
    'ratio': 0.5,
    'urgent': True,
    'test': False,
}
ORDER = {
    'id': 123_456,
    'customer': 'customer-17',
    'items': [
        {'title': 'a book', 'price': 12.5, 'count': 2},
        {'title': 'pen', 'price': 1.25, 'count': 10},
        {'title': 'paper', 'price': 3.5, 'count': 100},
    ],
    'paid': True,
    'note': None,
    'tags': ['red', 'blue'],
}
MESSAGES = {
    'seed': Message(SEED),
    'data10': Message(b'0123456789'),
    'data1k': Message(bytes(range(256)) * 4),
    'properties': Message(SEED, PROPERTIES, APP_PROPERTIES),
    'nested': Message(document()),
    'order': Message(ORDER),
}


def same(value: Any) -> Any:
    """Return the value unchanged."""
    return value


def clip(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f'{text[:300]}...'


@dataclass(frozen=True)
class Case:
    """A statement to time, and a check that it works.

    :ivar statement: expressions or assignments separated by `; `; the last is an expression.
    :ivar names: the namespace of the statement.
    :ivar expected: expected result of calling `read` with the value of the last expression.
    """

    statement: str
    names: dict[str, Any]
    expected: Any
    read: Callable[[Any], Any] = same

    def check(self) -> None:
        """Run the statement once and check its result.

        :raises ValueError: the result is wrong.
        """
        *before, last = self.statement.split('; ')
        names = dict(self.names)
        exec('\n'.join(before), names)
        result = self.read(eval(last, names))
        if result != self.expected:
            raise ValueError(f'{self.statement} gives {clip(result)}, not {clip(self.expected)}')

    def timer(self) -> Timer:
        return Timer(self.statement, globals=self.names)


class Codec(Work):
    """Checks a case and runs its statement."""

    def __init__(self, make: Callable[[str, Message], Case], kind: Kind, target: Target) -> None:
        super().__init__(kind, target)
        work, _, message = (kind.like or kind.name).rpartition('-')
        self.case = make(work, MESSAGES[message])

    async def open(self) -> None:
        self.case.check()

    async def prepare(self, count: int) -> None:
        self.count = count
        self.timer = self.case.timer()
        # another lane has just run, and a round may take only milliseconds: warm up
        self.timer.timeit(count // 10)

    async def run(self) -> int:
        self.timer.timeit(self.count)
        return self.count

    async def finish(self) -> None:
        self.case.check()

    async def close(self) -> None:
        pass
