"""A store in memory with the calls used of torch's, which can be lost or fall silent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from waiting import PATIENCE


class MemoryStore:
    """All clients share one. While ``answers`` is cleared, every call waits."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._lost = False
        self._changed = threading.Condition()
        self.answers = threading.Event()
        self.answers.set()

    def lose(self) -> None:
        """Every call from now on, and every waiting one, raises as torch's do when the host is gone."""
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def set(self, key: str, value: str, /) -> None:
        with self._call():
            self.values[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        return self.multi_get([key])[0]

    def add(self, key: str, value: int, /) -> int:
        with self._call():
            number = int(self.values.get(key, b"0")) + value
            self.values[key] = str(number).encode()
            return number

    def check(self, keys: list[str], /) -> bool:
        with self._call():
            return all(key in self.values for key in keys)

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        with self._call():
            if self.values.get(key, b"") == expected.encode():
                self.values[key] = desired.encode()
            return self.values.get(key, expected.encode())

    def delete_key(self, key: str, /) -> bool:
        with self._call():
            return self.values.pop(key, None) is not None

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        self.wait(keys, timedelta(seconds=PATIENCE))
        with self._call():
            return [self.values[key] for key in keys]

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        with self._call():
            seconds = min(PATIENCE, timeout.total_seconds())
            there = self._changed.wait_for(lambda: self._lost or all(key in self.values for key in keys), seconds)
            self._check_lost()
            assert there, f"{keys} never came"

    @contextmanager
    def _call(self) -> Iterator[None]:
        self.answers.wait(PATIENCE)
        with self._changed:
            self._check_lost()
            yield
            self._changed.notify_all()

    def _check_lost(self) -> None:
        if self._lost:
            raise RuntimeError("Connection reset by peer")
