"""asyncio client for RabbitMQ Streams, with a Cython AMQP 1.0 codec."""

__version__ = '1.0.0.dev0'
