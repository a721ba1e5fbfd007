"""Sphinx configuration; `make doc` builds with warnings as errors."""

from sphinx.util.inspect import TypeAliasForwardRef

from rbfly import __version__

project = 'RbFly'
author = 'the RbFly developers'
project_copyright = author
version = release = __version__
extensions = ['sphinx.ext.autodoc']
exclude_patterns = ['_build']
html_theme = 'furo'
html_title = 'RbFly'
html_static_path = ['_static']
html_css_files = ['rbfly.css']
autodoc_typehints = 'description'
autodoc_member_order = 'bysource'
autodoc_type_aliases = {'AMQPBody': 'rbfly.types.AMQPBody'}
TypeAliasForwardRef.__repr__ = lambda self: self.name  # in a union it would tell of itself
default_role = 'code'
