"""USER room: publishers under the module name that programs written for RbFly 0.x know."""

from .batch import PublisherBatchFast, PublisherBatchLimit, PublisherBinBatch
from .client import StreamsClient
from .publisher import Publisher, PublisherBin

__all__ = [
    'Publisher',
    'PublisherBatchFast',
    'PublisherBatchLimit',
    'PublisherBin',
    'PublisherBinBatch',
    'StreamsClient',
]
