"""Where PyInstaller finds the hook of this package (entry point `pyinstaller40`)."""

from pathlib import Path


def hook_dirs() -> list[str]:
    return [str(Path(__file__).parent)]
