"""The command `tqkv`; `python -m tqkv` runs it too."""

from __future__ import annotations

import sys

from ._native import run_command


def main() -> int:
    """Runs the command with the arguments of the process. Returns its exit code."""
    return run_command(["tqkv", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
