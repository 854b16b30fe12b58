"""A store in memory with the calls that are used of torch's, which can be lost or fall silent."""

import threading
from datetime import timedelta


class MemoryStore:
    """All clients share one; ``calls`` counts what was asked."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.calls = 0
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
        self._enter()
        with self._changed:
            self.values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str, /) -> bytes:
        return self.multi_get([key])[0]

    def add(self, key: str, value: int, /) -> int:
        self._enter()
        with self._changed:
            number = int(self.values.get(key, b"0")) + value
            self.values[key] = str(number).encode()
            self._changed.notify_all()
            return number

    def check(self, keys: list[str], /) -> bool:
        self._enter()
        with self._changed:
            return all(key in self.values for key in keys)

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        self._enter()
        with self._changed:
            if self.values.get(key, b"") == expected.encode():
                self.values[key] = desired.encode()
                self._changed.notify_all()
            return self.values.get(key, expected.encode())

    def delete_key(self, key: str, /) -> bool:
        self._enter()
        with self._changed:
            return self.values.pop(key, None) is not None

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        self.wait(keys, timedelta(seconds=60))
        with self._changed:
            return [self.values[key] for key in keys]

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        self._enter()
        with self._changed:
            there = self._changed.wait_for(
                lambda: self._lost or all(key in self.values for key in keys), min(60.0, timeout.total_seconds())
            )
            if self._lost:
                raise RuntimeError("Connection reset by peer")
            assert there, f"{keys} never came"

    def _enter(self) -> None:
        self.calls += 1
        self.answers.wait(60)
        if self._lost:
            raise RuntimeError("Connection reset by peer")
