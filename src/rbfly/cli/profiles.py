"""Named settings of connections, in a TOML file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

# The keys of a profile, and the types of their values.
KEYS: dict[str, tuple[type, ...]] = {
    'uri': (str, list),
    'tls-ca': (str,),
    'tls-cert': (str,),
    'tls-key': (str,),
    'tls-insecure': (bool,),
    'load-balancer': (bool,),
    'connect-timeout': (int, float),
}
PATHS = ('tls-ca', 'tls-cert', 'tls-key')


def config_file() -> Path:
    """Return where the file is: RBFLY_CONFIG, or `rbfly/config.toml` of the user's settings."""
    if path := os.environ.get('RBFLY_CONFIG'):
        return Path(path)
    if sys.platform == 'win32':
        folder = Path(os.environ.get('APPDATA') or Path.home())
    else:
        folder = Path(os.environ.get('XDG_CONFIG_HOME') or Path.home() / '.config')
    return folder / 'rbfly' / 'config.toml'


def read_profiles() -> tuple[dict[str, dict[str, Any]], str | None]:
    """Return the profiles by name, and the name of the default one.

    :raises click.ClickException: the file cannot be read, or has something else in it.
    """
    import tomllib

    path = config_file()
    try:
        with path.open('rb') as file:
            content = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as ex:
        if isinstance(ex, FileNotFoundError) and not os.environ.get('RBFLY_CONFIG'):
            return {}, None
        raise click.ClickException(f'cannot read {path}: {ex}') from ex
    default = content.pop('default', None)
    profiles = content.pop('profiles', {})
    if content:
        raise click.ClickException(
            f'{path} has {next(iter(content))!r}: it may have `default` and tables `profiles.NAME`'
        )
    if default is not None and not isinstance(default, str):
        raise click.ClickException(f'`default` in {path} must be the name of a profile')
    if not isinstance(profiles, dict):
        raise click.ClickException(f'`profiles` in {path} must be a table of profiles')
    return profiles, default


def find_profile(name: str | None) -> dict[str, Any]:
    """Return the settings of a profile, of the default one if there is no name.

    :raises click.ClickException: there is no such profile, or one of its settings is wrong.
    """
    profiles, default = read_profiles()
    name = name or default
    if name is None:
        return {}
    path = config_file()
    if name not in profiles:
        if not path.exists():
            raise click.ClickException(f'there is no profile {name!r}: there is no file {path}')
        known = ', '.join(profiles) or 'none'
        raise click.ClickException(f'{path} has no profile {name!r}; it has: {known}')
    profile = profiles[name]
    if not isinstance(profile, dict):
        raise click.ClickException(f'profile {name!r} in {path} must be a table')
    for key, value in profile.items():
        if key not in KEYS:
            raise click.ClickException(
                f'profile {name!r} in {path} has {key!r}: it may have {", ".join(KEYS)}'
            )
        if not isinstance(value, KEYS[key]) or (bool not in KEYS[key] and value is True):
            kinds = ' or '.join(kind.__name__ for kind in KEYS[key])
            raise click.ClickException(f'{key!r} of profile {name!r} in {path} must be {kinds}')
    return {
        key: str(path.parent / os.path.expanduser(value)) if key in PATHS else value
        for key, value in profile.items()
    }
