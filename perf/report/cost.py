"""The cost card on the page: a table and a panel of the figure for each kind of work."""

from collections.abc import Iterator, Sequence

from ..cost_card import COSTS, per_million, text
from ..stats import Interval
from .model import Lane
from .rst import plain, table
from .svg import Figure, Mark

# whose processor time, in the figure: the column of results, the colour and the shape
SHOWN = {
    'client': ('cpu_per_message', '#D55E00', 0),
    'broker': ('broker_cpu_per_message', '#0072B2', 1),
}


def cost(lane: Lane, column: str) -> Interval | None:
    return per_million(lane.run.results, lane.name, column)


def costs(lanes: Sequence[Lane]) -> Iterator[str]:
    """A table of what a million messages cost, for the lanes of a kind of work."""
    rows = []
    for lane in lanes:
        found = [text(cost(lane, column)) for column in COSTS]
        floor = next((other for other in lanes if other.is_floor), None)
        over = lane.ratio(floor, 'cpu_per_message') if floor and lane is not floor else None
        rows.append([plain(lane.library.title), *found, text(over)])
    head = ['lane', *(title for title, _ in COSTS.values()), 'client ÷ floor']
    yield from table(head, rows)


def panel(figure: Figure, title: str, lanes: Sequence[Lane]) -> None:
    """Processor time of client and broker."""
    rows = []
    for lane in lanes:
        marks = []
        for column, colour, shape in SHOWN.values():
            if found := cost(lane, column):
                marks.append(Mark(found.value, found.low, found.high, colour, shape))
        rows.append((lane.library.title, marks))
    legend = [
        (name, Mark(colour=colour, shape=shape)) for name, (_, colour, shape) in SHOWN.items()
    ]
    if rows:
        figure.rows(title, 'CPU seconds per million messages', rows, legend, log=True)
