"""asyncio client for RabbitMQ Streams, with a Cython AMQP 1.0 codec."""

__version__: str


def __getattr__(name: str) -> str:
    if name != '__version__':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from importlib.metadata import version  # takes longer than all of the package

    return version('rbfly')
