"""The programs of the documentation; `python -m tests.examples FOLDER` writes them to a folder."""

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'doc').glob('*.rst'))]
MAIN = 'async def main(client: rbs.StreamsClient) -> None:'
RUNNER = 'from example import main'  # the program that runs those with `main(client)`


def examples() -> list[tuple[str, str]]:
    """Return the name and the code of each program, such as `README.md:0`."""
    found = []
    for path in PAGES:
        text = path.read_text()
        if path.suffix == '.md':
            blocks = re.findall(r'^```python\n(.*?)^```', text, re.M | re.S)
        else:
            blocks = re.findall(r'^\.\. code-block:: python\n\n((?: {3}.*\n|\n)+)', text, re.M)
            blocks = [re.sub(r'^ {3}', '', block, flags=re.M) for block in blocks]
        found += [(f'{path.name}:{i}', block) for i, block in enumerate(blocks)]
    return found


def write(folder: Path) -> None:
    """Write each program to a file, and one that RUNNER can import to `example.py`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, code in examples():
        (folder / f'{re.sub("[.:-]", "_", name)}.py').write_text(code)
        if MAIN in code:
            (folder / 'example.py').write_text(code)


if __name__ == '__main__':
    write(Path(sys.argv[1]))
