"""Tests for tools/hot.py: parsing annotated pages and reporting changes."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location('hot', ROOT / 'tools' / 'hot.py')
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules['hot'] = module
    spec.loader.exec_module(module)
    return module


hot = load()

# score and text of each line of a module
SOURCE = [
    (9, 'from x cimport y'),
    (0, ''),
    (0, 'cdef object CACHE = make('),
    (4, '    3)'),
    (1, 'cdef inline int put_sized('),
    (0, '    OutBuffer *out, const void *data, Py_ssize_t n'),
    (2, ') except -1:'),
    (0, '    """A docstring with cdef int no_function(x): in it."""'),
    (0, ''),
    (0, '# a comment that stands out'),
    (3, "    if n > 255 and p[0] < 'a':"),
    (14, '        raise ValueError(n)'),
    (0, '    return 0'),
    (0, ''),
    (0, ''),
    (5, 'cdef class Window(Base):'),
    (0, '    cdef list confirm(self, const uint8_t *p):'),
    (7, '        done = f(1)'),
    (0, ''),
    (0, '    @property'),
    (1, '    def size(self): return 1'),
    (0, ''),
    (6, 'class Other:'),
    (2, '    async def confirm(self):'),
    (0, '        pass'),
    (8, 'x = confirm(1)'),
]


def page(source: list[tuple[int, str]]) -> str:
    """An annotated page as Cython writes it: each line with the C generated for it."""
    parts = ['<style>.cython.score-254 {background-color: #FFFF00;}</style>']
    for number, (score, code) in enumerate(source, 1):
        text = code.replace('&', '&amp;').replace('<', '&lt;').replace("'", '&#39;')
        text = text.replace('cdef', '<span class="k">cdef</span><span class="w"></span>')
        if score:
            parts.append(
                f'<pre class="cython line score-{score}" onclick="(function(f,s,c){{}})(this)">'
                f'+<span class="">{number:02}</span>: {text}</pre>'
                f"<pre class='cython code score-{score} '>  __pyx_t_2 = <span class='py_c_api'>"
                f'PyCall</span>(0);\n</pre>'
            )
        else:
            parts.append(
                f'<pre class="cython line score-0">&#xA0;<span class="">{number:02}</span>: '
                f'{text}</pre>'
            )
    return '\n'.join(parts)


def test_read_lines_with_scores() -> None:
    lines = list(hot.read_lines(page(SOURCE)))
    assert [(line.score, line.code) for line in lines] == SOURCE
    assert [line.number for line in lines] == list(range(1, len(SOURCE) + 1))


def test_function_score_sums_its_lines() -> None:
    functions = hot.read_functions(list(hot.read_lines(page(SOURCE))))
    assert {name: function.score for name, function in functions.items()} == {
        'put_sized': 1 + 2 + 3 + 14,
        'Window.confirm': 7,
        'Window.size': 1,
        'Other.confirm': 2,
    }
    worst = functions['put_sized'].worst()
    assert [(line.score, line.number) for line in worst] == [(14, 12), (3, 11), (2, 7), (1, 5)]


def write(folder: Path) -> Path:
    path = folder / 'rbfly' / 'amqp' / '_codec.html'
    path.parent.mkdir(parents=True)
    path.write_text(page(SOURCE), encoding='utf-8')
    return folder


# inline functions of a .pxd file, and the C of a module that uses two of them
HEADER = """cdef int elsewhere(int n)

cdef inline int first(int n):
    if n:
        return 1
    return 0

cdef inline object second(int n):
    return (n,
            n)

cdef inline int unused(int n): return n
"""
MODULE_C = """
/* "rbfly/amqp/_scalars.pxd":3
 * cdef inline int first(int n):             # <<<<<<<<<<<<<<
 */
static CYTHON_INLINE int __pyx_f_first(int n) {
  __Pyx_RefNannySetupContext("first", 0);
  /* "rbfly/amqp/_scalars.pxd":4
 *     if n:             # <<<<<<<<<<<<<<
 */
  if (n) {
    /* "rbfly/amqp/_scalars.pxd":5
 *         return 1             # <<<<<<<<<<<<<<
 */
    return PyLong_AsLong(PyList_GET_ITEM(x, 0));
    /* "rbfly/amqp/_scalars.pxd":4
 *     if n:             # <<<<<<<<<<<<<<
 */
    __Pyx_AddTraceback("first");
  }
  /* "rbfly/amqp/_scalars.pxd":6
 *     return 0             # <<<<<<<<<<<<<<
 */
  return 0;
}

static PyObject *somebody(void) { return PyLong_FromLong(1); }

/* "rbfly/amqp/_scalars.pxd":8
 * cdef inline object second(int n):             # <<<<<<<<<<<<<<
 */
static CYTHON_INLINE PyObject *__pyx_f_second(int n) {
  PyTuple_New(2);
}
/* "rbfly/amqp/_codec.pyx":5
 * f()             # <<<<<<<<<<<<<<
 */
  PyTuple_New(2);
"""


def write_inline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    sources = folder / 'src' / 'rbfly' / 'amqp'
    build = folder / 'build' / 'rbfly' / 'amqp'
    for path in (sources, build):
        path.mkdir(parents=True)
    (sources / '_scalars.pxd').write_text(HEADER, encoding='utf-8')
    monkeypatch.setattr(hot, 'SOURCES', folder / 'src')
    dearer = MODULE_C.replace('PyTuple_New(2)', 'PyTuple_New(2) + PyTuple_New(2)')
    for name, code in (('_codec', MODULE_C), ('_gone', dearer + dearer), ('_other', dearer)):
        (build / f'{name}.c').write_text(code, encoding='utf-8')
        if name != '_gone':
            (sources / f'{name}.pyx').touch()
    return folder / 'build'


def test_inline_functions_are_scored_in_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = write_inline(tmp_path, monkeypatch)
    module = 'rbfly.amqp._scalars.pxd'
    found = hot.find({module: {'first': 0, 'second': 0}}, build)
    assert hot.scores(found) == {module: {'first': 5 + 1 + 2, 'second': 5 + 5}}
    assert [line.number for line in found[module]['first'].worst()] == [5, 4]
    for name in ('unused', 'elsewhere'):
        with pytest.raises(hot.HotError, match=f'no function {name}'):
            hot.find({module: {name: 0}}, build)


def test_comparison_reports_regressions_and_improvements(tmp_path: Path) -> None:
    build = write(tmp_path)
    table = {'rbfly.amqp._codec': {'put_sized': 19, 'Window.confirm': 8, 'Window.size': 1}}
    found = hot.find(table, build)
    worse, better = hot.compare(table, found)
    assert worse[0] == 'rbfly.amqp._codec.put_sized: 20, recorded 19'
    assert 'line 12: raise ValueError(n)' in worse[1]
    assert better == ['rbfly.amqp._codec.Window.confirm: 7, recorded 8']
    assert hot.compare(hot.scores(found), found) == ([], [])


def test_missing_function_or_page_is_an_error(tmp_path: Path) -> None:
    build = write(tmp_path)
    with pytest.raises(hot.HotError, match='no function gone'):
        hot.find({'rbfly.amqp._codec': {'gone': 1}}, build)
    with pytest.raises(hot.HotError, match='no annotated page'):
        hot.find({'rbfly.amqp._none': {'put_sized': 1}}, build)


def test_table_matches_the_source() -> None:
    table = json.loads((ROOT / 'tools' / 'hot.json').read_text())
    for module, names in table.items():
        suffix = '.pxd' if module.endswith('.pxd') else '.pyx'
        source = ROOT.joinpath('src', *module.removesuffix('.pxd').split('.')).with_suffix(suffix)
        lines = [
            hot.Line(number, 0, code)
            for number, code in enumerate(source.read_text().splitlines(), 1)
        ]
        assert set(names) <= set(hot.read_functions(lines))


@pytest.mark.parametrize(
    ('limit', 'status', 'text'),
    [(20, 0, '1 hot functions match'), (19, 1, 'put_sized: 20, recorded 19'), (21, 0, '--update')],
)
def test_exit_status(
    limit: int,
    status: int,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(hot, 'BUILD', write(tmp_path / 'build'))
    monkeypatch.setattr(hot, 'TABLE', tmp_path / 'hot.json')
    monkeypatch.setattr(hot, 'annotate', lambda: None)
    hot.TABLE.write_text(json.dumps({'rbfly.amqp._codec': {'put_sized': limit}}))
    assert hot.main([]) == status
    assert text in capsys.readouterr().out
    assert hot.main(['--update']) == 0
    assert json.loads(hot.TABLE.read_text()) == {'rbfly.amqp._codec': {'put_sized': 20}}
