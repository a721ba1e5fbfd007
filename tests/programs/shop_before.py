"""A service with threads that publishes orders: without `rbfly.sync`."""

import asyncio
import atexit
import json
import sys
import threading
from concurrent.futures import Future
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

import rbfly.streams as rbs

_, uri, stream = sys.argv


class Publishing:
    """A publisher whose event loop runs in a thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ready: Future[rbs.Publisher] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stopping: asyncio.Event | None = None

    def send(self, order: Any, timeout: float) -> None:
        with self.lock:
            if self.ready is None or (self.ready.done() and self.ready.exception()):
                self.ready = Future()
                self.thread = threading.Thread(target=self.run, args=(self.ready,))
                self.thread.daemon = True
                self.thread.start()
        publisher = self.ready.result(timeout)
        assert self.loop is not None
        call = asyncio.run_coroutine_threadsafe(publisher.send(order), self.loop)
        try:
            call.result(timeout)
        except TimeoutError:
            call.cancel()
            raise

    def run(self, ready: Future[rbs.Publisher]) -> None:
        try:
            asyncio.run(self.serve(ready))
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)

    async def serve(self, ready: Future[rbs.Publisher]) -> None:
        self.loop = asyncio.get_running_loop()
        self.stopping = asyncio.Event()
        async with (
            rbs.streams_client(uri) as client,
            client.publisher(stream) as publisher,
        ):
            ready.set_result(publisher)
            await self.stopping.wait()

    def close(self) -> None:
        if self.loop is not None and self.stopping is not None:
            self.loop.call_soon_threadsafe(self.stopping.set)
            self.thread.join()


publishing = Publishing()
atexit.register(publishing.close)


def application(environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
    body = environ['wsgi.input'].read(int(environ['CONTENT_LENGTH']))
    publishing.send(json.loads(body), timeout=5)
    start('201 Created', [])
    return []


class Server(ThreadingMixIn, WSGIServer):
    pass


with make_server('127.0.0.1', 0, application, Server) as server:
    print(server.server_port, flush=True)
    server.serve_forever()
