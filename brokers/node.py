"""One node of RabbitMQ: its ports, its configuration and its certificates."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from .probe import stream_uri

HOST = '127.0.0.1'

# A throw-away authority, a server certificate, and a client certificate for EXTERNAL.
CERTIFICATES = """
set -e
cd /srv/tls
new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
openssl req -x509 $new -keyout ca.key -out ca.pem -days 3650 -subj '/CN=RbFly test authority' \
    -addext 'keyUsage=critical,keyCertSign,cRLSign'
printf 'subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1\\nextendedKeyUsage=serverAuth\\n' >s.ext
printf 'subjectAltName=DNS:guest\\nextendedKeyUsage=clientAuth\\n' >c.ext
openssl req $new -keyout server.key -out server.csr -subj '/CN=localhost'
openssl req $new -keyout client.key -out client.csr -subj '/CN=guest'
sign='openssl x509 -req -CA ca.pem -CAkey ca.key -CAcreateserial -days 3650'
$sign -in server.csr -out server.pem -extfile s.ext
$sign -in client.csr -out client.pem -extfile c.ext
chmod 644 *.pem client.key
rm ca.key *.csr *.ext
"""


@dataclasses.dataclass
class Node:
    """The ports a node listens on and the addresses it advertises to clients."""

    index: int
    name: str
    stream_port: int
    tls_port: int = 0
    amqp_port: int = 0
    mqtt_port: int = 0
    dist_port: int = 0
    host: str = HOST
    advertised_host: str = HOST
    advertised_port: int = 0
    advertised_tls_port: int = 0

    @property
    def folder(self) -> str:
        """The node name without its host; also the name of its folder in `srv`."""
        return self.name.partition('@')[0]

    @property
    def uri(self) -> str:
        return stream_uri(self.host, self.stream_port)

    @property
    def tls_uri(self) -> str:
        return stream_uri('localhost', self.tls_port, tls=True)

    @property
    def amqp_uri(self) -> str:
        return f'amqp://guest:guest@{self.host}:{self.amqp_port}/'


def make_nodes(
    count: int,
    ports: Sequence[int],
    advertised_ports: Sequence[int | None] | None = None,
    advertised_hosts: Sequence[str | None] | None = None,
    advertised_tls_ports: Sequence[int | None] | None = None,
) -> list[Node]:
    """Create nodes, with five of `ports` for each."""
    for what in (advertised_ports, advertised_hosts, advertised_tls_ports):
        if what is not None and len(what) != count:
            raise ValueError('pass one advertised host or port for each node')
    nodes = []
    for i in range(count):
        stream, tls, amqp, mqtt, dist = ports[5 * i : 5 * i + 5]
        nodes.append(
            Node(
                i,
                f'n{i + 1}@localhost',
                stream,
                tls,
                amqp,
                mqtt,
                dist,
                advertised_host=(advertised_hosts[i] if advertised_hosts else None) or HOST,
                advertised_port=(advertised_ports[i] if advertised_ports else None) or stream,
                advertised_tls_port=(
                    (advertised_tls_ports[i] if advertised_tls_ports else None) or tls
                ),
            )
        )
    return nodes


def configuration(
    node: Node, nodes: Sequence[Node], plugins: Iterable[str], extra: Iterable[str]
) -> str:
    """The text of a node's `rabbitmq.conf`."""
    lines = [
        f'listeners.tcp.1 = {HOST}:{node.amqp_port}',
        f'stream.listeners.tcp.1 = {HOST}:{node.stream_port}',
        f'stream.listeners.ssl.1 = {HOST}:{node.tls_port}',
        f'stream.advertised_host = {node.advertised_host}',
        f'stream.advertised_port = {node.advertised_port}',
        # clients verify the certificate against this name
        'stream.advertised_tls_host = localhost',
        f'stream.advertised_tls_port = {node.advertised_tls_port}',
        'ssl_options.cacertfile = /srv/tls/ca.pem',
        'ssl_options.certfile = /srv/tls/server.pem',
        'ssl_options.keyfile = /srv/tls/server.key',
        'ssl_options.verify = verify_peer',
        'ssl_options.fail_if_no_peer_cert = false',
        'disk_free_limit.absolute = 50MB',
    ]
    if 'rabbitmq_mqtt' in plugins:
        lines.append(f'mqtt.listeners.tcp.1 = {HOST}:{node.mqtt_port}')
    if 'rabbitmq_auth_mechanism_ssl' in plugins:
        lines += [
            f'auth_mechanisms.{i} = {name}'
            for i, name in enumerate(('PLAIN', 'AMQPLAIN', 'EXTERNAL'), 1)
        ]
        lines.append('ssl_cert_login_from = common_name')
    # the first node forms the cluster; the others join it
    members = [nodes[0]] if node.index == 0 else [nodes[0], node]
    lines.append('cluster_formation.peer_discovery_backend = classic_config')
    lines += [
        f'cluster_formation.classic_config.nodes.{i} = {n.name}' for i, n in enumerate(members, 1)
    ]
    return '\n'.join([*lines, *extra, ''])
