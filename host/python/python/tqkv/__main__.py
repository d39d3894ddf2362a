"""The command `tqkv`; `python -m tqkv` runs it too."""

from __future__ import annotations

import sys

from ._native import run_command


def main() -> int:
    """Runs the command with the arguments of the process. Returns its exit code."""
    words = sys.argv[1:]
    # A program of this process sees the interpreter, but not its environment.
    if words[:1] == ["doctor"] and "--python" not in words:
        words += ["--python", sys.executable]
    return run_command(["tqkv", *words])


if __name__ == "__main__":
    sys.exit(main())
