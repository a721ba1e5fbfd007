"""A service with threads that publishes orders."""

import functools
import json
import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

import rbfly.sync

_, uri, stream = sys.argv
client = rbfly.sync.streams_client(uri)


@functools.cache
def publisher() -> rbfly.sync.Publisher:
    return client.publisher(stream)


def application(environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
    body = environ['wsgi.input'].read(int(environ['CONTENT_LENGTH']))
    publisher().send(json.loads(body), timeout=5)
    start('201 Created', [])
    return []


class Server(ThreadingMixIn, WSGIServer):
    pass


with make_server('127.0.0.1', 0, application, Server) as server:
    print(server.server_port, flush=True)
    server.serve_forever()
