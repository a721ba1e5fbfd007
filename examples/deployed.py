"""A worker as it is deployed: TLS, a token in a file, metrics for Prometheus, SIGTERM.

Its environment: RBFLY_URI, a URI without a user; CA_FILE, TOKEN_FILE, RABBITMQ_USER;
METRICS_PORT and STREAM.
"""

import asyncio
import os
import signal
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import rbfly.otel
import rbfly.streams as rbs
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server


async def credentials() -> rbs.Credentials:
    """Return the token that the platform renews in a file, such as a secret."""
    path = Path(os.environ['TOKEN_FILE'])
    token = (await asyncio.to_thread(path.read_text)).strip()
    user = os.environ.get('RABBITMQ_USER', '')  # not used with OAuth 2
    return rbs.Credentials(user, token, datetime.now(UTC) + timedelta(minutes=5))


async def work(client: rbs.StreamsClient, stream: str) -> None:
    async with client.subscribe(stream, group='billing') as orders:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, orders.stop)
        async for order in orders:
            print('billed', order['id'], flush=True)


async def main() -> None:
    provider = MeterProvider([PrometheusMetricReader()])
    start_http_server(int(os.environ.get('METRICS_PORT', '9464')))
    async with rbs.streams_client(
        os.environ['RBFLY_URI'],
        ssl=ssl.create_default_context(cafile=os.environ['CA_FILE']),
        credentials=credentials,
        connection_name='billing',
        metrics=rbfly.otel.metrics(provider),
    ) as client:
        await work(client, os.environ['STREAM'])


if __name__ == '__main__':
    asyncio.run(main())
