"""Sphinx configuration; `make doc` builds with warnings as errors."""

import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.inspect import TypeAliasForwardRef

from rbfly import __version__

DOC = Path(__file__).resolve().parent
sys.path.append(str(DOC.parent))  # of the benchmark and the proofs, which write pages, and tools

project = 'RbFly'
author = 'RbFly contributors'
project_copyright = author
version = release = __version__
extensions = ['sphinx.ext.autodoc', 'tools.llms']
exclude_patterns = ['_build']
html_theme = 'furo'
html_title = 'RbFly'
html_static_path = ['_static']
html_css_files = ['rbfly.css']
autodoc_typehints = 'description'
autodoc_typehints_description_target = 'documented_params'
autodoc_member_order = 'bysource'
autodoc_preserve_defaults = True
autodoc_type_aliases = {
    'AMQPBody': 'rbfly.types.AMQPBody',
    'types.AMQPBody': 'rbfly.types.AMQPBody',
    'BloomFilterExtract': 'rbfly.streams.types.BloomFilterExtract',
}
TypeAliasForwardRef.__repr__ = lambda self: self.name  # shows the alias's name in a union
default_role = 'code'

nitpicky = True
nitpick_ignore_regex = [
    ('py:class', r'Transform'),
    # the standard library, whose inventory would have to be downloaded
    (
        'py:(class|func)',
        r'(_?asyncio|collections\.abc|contextlib|datetime|ssl|tls|uuid)\..*',
    ),
    ('py:class', 'TracerProvider'),  # OpenTelemetry's
    # the type of what `rbfly.otel.tracing` returns
    ('py:class', r'rbfly\.streams\.types\.ClientTracing'),
    ('py:class', 'MeterProvider'),  # OpenTelemetry's
    # type variables
    ('py:class', r'(rbfly\.(amqp|processing|streams|sync)\.[\w.]+\.)?([BFPT]|Body)'),
    ('py:class', r'rbfly\.types\.(Dataclass|Struct|Model)'),  # the parts of `AMQPRecord`
    ('py:class', 'Transform'),  # a function of the program, which `pipe` describes
    ('py:class', r'rbfly\.sync\..*'),  # not indexed: its names are those of `rbfly.streams`
    # the keyword arguments of `rbfly.sync`, and the client that `run` passes on
    ('py:class', r'(Super)?SubscribeOptions|AsyncClient'),
    # the results of `retry` and `dead_letter`, which programs pass to `process`
    ('py:class', r'rbfly\.processing\._failures\.(Retry|DeadLetter)'),
    # the result of `get_protocol`, which is for tests and diagnosis and is not documented
    ('py:class', r'rbfly\.net\.connection\.Connection'),
    # the result of `publisher`, which programs await or enter at once
    ('py:class', r'rbfly\.streams\._\w+\.opening\.(PublisherContext|SuperStreamPublisherContext)'),
    # the results of `by_hash` and `by_key`, which programs pass to `publisher`
    ('py:class', r'rbfly\.streams\._super_stream\._routing\.(HashRoute|KeyRoute)'),
]

# Programs get these objects from a client or a class method; their constructors are internal.
INTERNAL_CONSTRUCTORS = {
    f'rbfly.streams.{name}'
    for name in (
        'BasePublisher', 'BaseSubscription', 'Confirmation', 'Offset', 'Publisher', 'StreamsClient',
        'Subscription', 'SuperStream', 'SuperStreamPublisher', 'SuperStreamSubscription',
    )
}  # fmt: skip
INTERNAL_CONSTRUCTORS |= {
    f'rbfly.sync.{name}'
    for name in ('Confirmation', 'Publisher', 'StreamsClient', 'Subscription', 'SuperStream')
}


def hide_constructor(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str, returns: str
) -> tuple[str, None] | None:
    return ('', None) if what == 'class' and name in INTERNAL_CONSTRUCTORS else None


def hide_overloads() -> None:
    """Show the signature with the defaults; overloads differ in the types of bodies only."""
    for name in ('streams.client', 'streams._super_stream.client', 'processing._process'):
        analyzer = ModuleAnalyzer.for_module(f'rbfly.{name}')
        analyzer.analyze()
        analyzer.overloads.clear()


def write_results(app: Sphinx) -> None:
    """Write the pages of benchmark and proofs, unless they are newer than results and code."""
    import perf.report
    import proofs.page

    for module, pattern, name in (
        (perf.report, 'perf/*.jsonl.xz', 'internals/performance.rst'),
        (proofs.page, 'proofs/*.json', 'internals/proofs.rst'),
    ):
        results = sorted((DOC / '_static').glob(pattern))
        sources = Path(module.__file__ or '').parent.glob('*.py')
        newest = max(path.stat().st_mtime for path in (*results, *sources))
        page = DOC / name
        if not page.exists() or page.stat().st_mtime < newest:
            module.write(results, page.parent)


def setup(app: Sphinx) -> None:
    hide_overloads()
    app.connect('builder-inited', write_results)
    app.connect('autodoc-process-signature', hide_constructor)
