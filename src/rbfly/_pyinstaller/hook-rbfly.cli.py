# ruff: noqa: N999  (PyInstaller prescribes the name)
"""Tell PyInstaller which commands `rbfly` imports when it runs them."""

from PyInstaller.utils.hooks import collect_submodules

hiddenimports = collect_submodules('rbfly.cli')
