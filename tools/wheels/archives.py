"""Archives whose bytes depend on the contents alone: order, times, owners and modes are fixed."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
import time
import zipfile
from pathlib import Path


def commit_time(root: Path) -> int:
    """Seconds since the epoch at which the current commit was made."""
    command = ['git', '-C', str(root), 'log', '-1', '--format=%ct']
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def repack_wheel(wheel: Path, when: int) -> None:
    """Write the wheel again, with the time `when`; metadata comes last, as the format advises."""
    date = time.gmtime(when)[:6]
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name[-1] != '/'}
    record = next(name for name in files if name.endswith('.dist-info/RECORD'))
    files[record] = b''.join(sorted(files[record].splitlines(keepends=True)))
    with zipfile.ZipFile(wheel, 'w', zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files, key=lambda name: ('.dist-info/' in name, name == record, name)):
            info = zipfile.ZipInfo(name, date)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            info.external_attr = (0o100755 if name.endswith('.so') else 0o100644) << 16
            archive.writestr(info, files[name])


def repack_sdist(sdist: Path, when: int) -> None:
    """Write the sdist again, with the time `when` and no owners."""
    with tarfile.open(sdist) as archive:
        members = [
            (member, archive.extractfile(member) if member.isfile() else None)
            for member in sorted(archive.getmembers(), key=lambda member: member.name)
        ]
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode='w', format=tarfile.PAX_FORMAT) as packed:
            for member, data in members:
                member.mtime, member.pax_headers = when, {}
                member.uid = member.gid = 0
                member.uname = member.gname = ''
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                packed.addfile(member, data)
    with sdist.open('wb') as file, gzip.GzipFile('', 'wb', 9, file, mtime=when) as compressed:
        compressed.write(content.getvalue())
