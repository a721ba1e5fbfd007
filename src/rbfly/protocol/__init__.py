"""The RabbitMQ stream protocol, without sockets; the `.pxd` files have no stable ABI."""
