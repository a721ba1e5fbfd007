"""The RabbitMQ stream protocol, without sockets: bytes in, bytes out."""
