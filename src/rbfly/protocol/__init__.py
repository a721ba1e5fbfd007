"""The RabbitMQ stream protocol, without sockets: bytes in, bytes out.

The `.pxd` files are internal: their ABI may change in any release.
"""
