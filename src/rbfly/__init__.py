"""asyncio client for RabbitMQ Streams, with a Cython AMQP 1.0 codec."""

from importlib.metadata import version

__version__ = version('rbfly')
