"""A socket that never blocks: each call tries again until there is data, or room for it."""

import socket
import ssl

NOT_READY = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class PollingSocket:
    """Wraps a connected socket, with or without TLS."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.close = sock.close

    def recv(self, size: int) -> bytes:
        recv = self.sock.recv
        while True:
            try:
                return recv(size)
            except NOT_READY:
                pass

    def recv_into(self, view: memoryview) -> int:
        recv_into = self.sock.recv_into
        while True:
            try:
                return recv_into(view)
            except NOT_READY:
                pass

    def sendall(self, data: bytes) -> None:
        send = self.sock.send
        left = memoryview(data)
        while left:
            try:
                left = left[send(left) :]
            except NOT_READY:
                pass
