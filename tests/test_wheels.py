"""Wheels have the same bytes whenever they are built, and names that pip understands."""

import gzip
import io
import platform
import tarfile
import zipfile
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from brokers.state import making
from tests.examples import PROJECT
from tools.wheels import __main__ as command_line
from tools.wheels import archives
from tools.wheels.check import Failed, Result, table
from tools.wheels.root import TESTED_ON, Root
from tools.wheels.target import PYTHONS, Target, target_of, targets

WHEN = 1_700_000_001
FILES = {
    'rbfly/__init__.py': b'',
    'rbfly/_codec.so': b'\x7fELF',
    'x-1.dist-info/METADATA': b'Name: x\n',
    'x-1.dist-info/RECORD': b'rbfly/__init__.py,,\nrbfly/_codec.so,,\n',
}


def wheel(path: Path, names: list[str], year: int) -> Path:
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr(zipfile.ZipInfo('rbfly/', (year, 1, 1, 0, 0, 0)), '')
        for name in names:
            data = FILES[name]
            if name.endswith('RECORD') and names[0] != 'rbfly/__init__.py':
                data = b''.join(reversed(data.splitlines(keepends=True)))
            archive.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), data)
    archives.repack_wheel(path, WHEN)
    return path


def test_order_and_times_do_not_change_a_wheel(tmp_path: Path) -> None:
    first = wheel(tmp_path / '1.whl', [*FILES], 2001)
    assert first.read_bytes() == wheel(tmp_path / '2.whl', [*reversed(FILES)], 2002).read_bytes()
    with zipfile.ZipFile(first) as archive:
        assert {info.filename: archive.read(info) for info in archive.infolist()} == FILES
        assert archive.namelist()[-1] == 'x-1.dist-info/RECORD'
        assert archive.testzip() is None
        assert {info.date_time for info in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}


def sdist(path: Path, names: list[str], when: int) -> Path:
    with tarfile.open(path, 'w:gz') as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.mtime, member.uid, member.uname, member.size = when, when, str(when), 1
            archive.addfile(member, io.BytesIO(b'x'))
    archives.repack_sdist(path, WHEN)
    return path


def test_order_times_and_owners_do_not_change_an_sdist(tmp_path: Path) -> None:
    first = sdist(tmp_path / '1.tar.gz', ['x/a', 'x/b'], 1)
    assert first.read_bytes() == sdist(tmp_path / '2.tar.gz', ['x/b', 'x/a'], 2).read_bytes()
    with tarfile.open(first) as archive:
        assert [(member.name, member.mtime) for member in archive] == [('x/a', WHEN), ('x/b', WHEN)]
        assert archive.extractfile('x/b').read() == b'x'  # type: ignore[union-attr]
    with gzip.open(first) as file:
        assert file.read(3) == b'x/a'


def test_each_supported_python_has_wheels_and_a_place_to_test_them() -> None:
    classifiers = [item.rpartition(' ')[2] for item in PROJECT['classifiers'] if ':: 3.' in item]
    assert [*PYTHONS] == classifiers
    assert {*TESTED_ON} == {*PYTHONS}
    assert len({*targets(None, None, None)}) == 4 * len(PYTHONS)


@pytest.mark.parametrize('target', [*targets(None, None, None)], ids=str)
def test_name_of_a_wheel_tells_its_target(target: Target) -> None:
    names = [f'rbfly_streams-1.0-{target.interpreter}-{target}.whl']
    names.append(names[0].replace('-manylinux', '-manylinux2014_x.manylinux'))
    for name in names:
        assert target_of(Path(name)) == target
    (tag,) = parse_wheel_filename(names[0])[-1]
    assert tag.interpreter == tag.abi == target.interpreter
    assert tag.platform == target.policy


@pytest.mark.parametrize('name', ['x-1-py3-none-any.whl', 'x-1-cp313-cp313-win_amd64.whl'])
def test_wheel_for_another_system_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match='is not a wheel for Linux'):
        target_of(Path(name))


def test_options_select_targets() -> None:
    assert [*targets('3.13', 'aarch64', 'musl')] == [Target('3.13', 'aarch64', 'musl')]
    assert {target.arch for target in targets(None, 'x86_64', None)} == {'x86_64'}


def test_interrupted_download_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / 'headers'
    with suppress(EOFError), making(folder) as new:
        assert new
        (new / 'half').touch()
        raise EOFError
    assert not folder.exists()
    with making(folder) as new:
        assert new
        assert not [*new.iterdir()]
    with making(folder) as again:
        assert again is None


@pytest.mark.parametrize('arch', ['x86_64', 'aarch64'])
def test_variables_of_the_host_do_not_enter_a_root(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('PYTHONPATH', '/host')
    monkeypatch.setenv('PIP_CERT', '/certificate')
    entered = Root('trixie', arch, '3.13').enter({'A': 'b'})
    assert ('-i' in entered) == (arch == platform.machine())
    assert {'A=b', 'PIP_CERT=/certificate'} <= {*entered}
    assert not [word for word in entered if 'PYTHONPATH' in word]


def test_table_shows_size_and_place(tmp_path: Path) -> None:
    path = tmp_path / 'x.whl'
    path.write_bytes(bytes(1_234_567))
    lines = table([Result(path, 'Debian trixie', '9 passed', '3 s')]).splitlines()
    assert lines[-1] == '| x.whl | 1.23 MB | Debian trixie | 9 passed | 3 s |'
    assert len({line.count('|') for line in lines}) == 1


def test_failing_wheel_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / '1.whl', tmp_path / '2.whl']
    for file in files:
        file.touch()

    def check(file: Path, *_: bool) -> list[Result]:
        if file.name == '1.whl':
            raise Failed('Debian trixie: no')
        return [Result(file, 'Debian trixie', '9 passed', '3 s')]

    monkeypatch.setattr(command_line, 'check', check)
    with pytest.raises(SystemExit, match=r'failed: 1\.whl'):
        command_line.test(Namespace(files=files, here=True, quick=True))
    assert '| 2.whl | 0.00 MB | Debian trixie | 9 passed |' in capsys.readouterr().out
