"""Stores of the engines' tiers, which keep payloads by name: a folder, or main memory."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from ._native import TqkvError


def write_whole(path: str | os.PathLike[str], data: Any) -> None:
    """Writes a file, which appears complete or not at all, and is readable by its owner only."""
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=Path(path).parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class Folder:
    """Files that appear complete or not at all. Files are never evicted and never synced. If a crash of the machine truncates one, its
    CRC refuses it."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)

    def put(self, name: str, data: Any) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)

    def get(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def drop(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def clear(self, prefix: str) -> None:
        """Removes the payloads of a folder. Files that are being written stay, and appear after that."""
        for path in (self.path / prefix).glob("[!.]*"):
            path.unlink(missing_ok=True)


class Memory:
    """At most `max_bytes` bytes. The least recently used payload is dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.bytes = max_bytes, 0
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, name: str, data: Any) -> None:
        data = bytes(data)
        if len(data) > self.max_bytes:
            raise TqkvError(f"payload of {len(data)} bytes is not valid: expected at most max_bytes {self.max_bytes}")
        self.drop(name)
        with self._lock:
            self._entries[name] = data
            self.bytes += len(data)
            while self.bytes > self.max_bytes:
                self.bytes -= len(self._entries.popitem(last=False)[1])

    def get(self, name: str) -> bytes | None:
        with self._lock:
            if name in self._entries:
                self._entries.move_to_end(name)
            return self._entries.get(name)

    def has(self, name: str) -> bool:
        return name in self._entries

    def drop(self, name: str) -> None:
        with self._lock:
            self.bytes -= len(self._entries.pop(name, b""))

    def clear(self, prefix: str) -> None:
        """Removes the payloads of a folder."""
        for name in [name for name in tuple(self._entries) if name.startswith(prefix + "/")]:
            self.drop(name)


def open_store(folder: str | None, max_bytes: int | None) -> Folder | Memory:
    """The store of a configuration, which names one of the two."""
    if folder is not None and max_bytes is None:
        return Folder(folder)
    if folder is None and type(max_bytes) is int and max_bytes > 0:
        return Memory(max_bytes)
    raise TqkvError(f"folder {folder!r} and max_bytes {max_bytes!r} are not valid: expected one of them: a folder, or a number of bytes in memory")
