"""The client for programs without asyncio: scripts, and services such as Flask and Django."""

from .client import StreamsClient, streams_client
from .publisher import Confirmation, Publisher
from .subscription import Subscription
from .super_stream import SuperStream

__all__ = [
    'Confirmation', 'Publisher', 'StreamsClient', 'Subscription', 'SuperStream', 'streams_client',
]  # fmt: skip
