"""Publishers under the module name that programs written for RbFly 0.x know."""

from .client import StreamsClient
from .publisher import Publisher, PublisherBin
from .publisher_batch import PublisherBatchFast, PublisherBatchLimit, PublisherBinBatch

__all__ = [
    'Publisher',
    'PublisherBatchFast',
    'PublisherBatchLimit',
    'PublisherBin',
    'PublisherBinBatch',
    'StreamsClient',
]
