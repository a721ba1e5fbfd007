"""A RabbitMQ node behind proxies that inject latency."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Self
from urllib.parse import urlsplit

from brokers import RabbitMQ
from brokers.proxy import Proxy
from brokers.state import free_ports


class DelayedBroker:
    """A RabbitMQ node on loopback, for streams and AMQP 0.9.1; `with` starts and stops it.

    The proxies run in a thread.  Stream clients connect through their proxy because the node
    advertises its port.

    :ivar direct: stream URI of the node itself.
    :ivar uri: stream URI through the proxy.
    :ivar amqp_uri: AMQP URI through the proxy.
    """

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            port, *_ = free_ports(1)
            self.broker = RabbitMQ.private(1, advertised_ports=[port])
            stack.callback(self.broker.stop, orderly=False)
            self.broker.start()
            (node,) = self.broker.nodes
            self.direct = self.broker.uri
            amqp = urlsplit(str(self.broker.amqp_uri))
            assert amqp.hostname
            assert amqp.port
            self.proxies = [
                Proxy((node.host, node.stream_port), port=port),
                Proxy((amqp.hostname, amqp.port)),
            ]
            loop = asyncio.new_event_loop()
            stack.callback(loop.close)
            thread = threading.Thread(target=loop.run_forever, name='far', daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(loop.call_soon_threadsafe, loop.stop)

            def run(work: Coroutine[Any, Any, object]) -> None:
                asyncio.run_coroutine_threadsafe(work, loop).result()

            opened = AsyncExitStack()
            stack.callback(lambda: run(opened.aclose()))
            for proxy in self.proxies:
                run(opened.enter_async_context(proxy))
            self.uri = self.proxies[0].uri
            self.amqp_uri = amqp._replace(
                netloc=f'{amqp.username}:{amqp.password}@127.0.0.1:{self.proxies[1].port}'
            ).geturl()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def delay(self, milliseconds: float) -> None:
        """Set the latency added to each round trip."""
        for proxy in self.proxies:
            proxy.delay = milliseconds / 2000
