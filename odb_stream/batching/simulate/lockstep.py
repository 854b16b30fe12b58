"""Runs the programs of all ranks in one process, one event at a time; the simulation and the tests use it.

Ranks that do not gather the same number of integers at the same time, do not deliver together, or send what nobody
receives are an error here. Over a real transport they would hang.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from odb_stream.batching.cost import Group
from odb_stream.batching.messages import Decode, Deliver, Event, Exchange, Gather, StepGroups
from odb_stream.batching.program import Program
from odb_stream.errors import PeerError

Decoding = Callable[[int, StepGroups, int], StepGroups | Exception]


class Lockstep:
    """All ranks' programs, driven together. ``errors`` holds what a rank's program raised, by rank.

    ``decode(rank, groups, first)`` stands for the decoding of a rank's burst, which begins at step ``first`` of its
    round; by default every image is sound.
    """

    def __init__(
        self, programs: Sequence[Program[Any]], decode: Decoding = lambda _rank, groups, _first: groups
    ) -> None:
        self._decode = decode
        self.programs = programs
        self._runs: list[Generator[Event, Any, None]] = [program.run() for program in programs]
        self._events: list[Event | None] = [None] * len(programs)
        self._mail: dict[tuple[int, int], deque[list[Group[Any]]]] = defaultdict(deque)
        self.errors: dict[int, Exception] = {}
        self.gathers = 0
        self.bytes_gathered = 0
        self.groups_moved = 0

    def steps(self) -> Iterator[tuple[Deliver, ...]]:
        """Every step, as what each rank delivers. Ends when all ranks have ended, in error or not."""
        for rank in range(len(self._runs)):
            self._advance(rank, None)
        while True:
            self._exchange()
            events = [event for event in self._events if event is not None]
            if not events:
                return
            unread = [way for way, groups in self._mail.items() if groups]
            if unread and not self.errors:
                raise PeerError(f"groups were sent that nobody received: {unread} (origin, destination)")
            if len(events) < len(self._events):
                raise PeerError(f"some ranks have ended, others have not: {self._kinds()}")
            if all(isinstance(event, Deliver) for event in events):
                yield tuple(event for event in events if isinstance(event, Deliver))
                for rank in range(len(self._runs)):
                    self._advance(rank, None)
            else:
                self._gather(events)

    def _advance(self, rank: int, answer: Any) -> None:
        try:
            self._events[rank] = self._runs[rank].send(answer)
        except StopIteration:
            self._events[rank] = None
        except Exception as error:  # noqa: BLE001 - kept for whoever drives; a rank's error is a result here
            self._events[rank] = None
            self.errors[rank] = error

    def _gather(self, events: list[Event]) -> None:
        values = [event.values for event in events if isinstance(event, Gather)]
        if len(values) < len(events) or len({len(row) for row in values}) > 1:
            raise PeerError(f"ranks are not in step: {self._kinds()}")
        self.gathers += 1
        self.bytes_gathered += values[0].nbytes
        together = np.stack(values)
        for rank in range(len(self._runs)):
            self._advance(rank, together)

    def _exchange(self) -> None:
        """Decode, and deliver mail, until no rank waits for either."""
        posted: set[int] = set()
        progress = True
        while progress:
            progress = False
            for rank, event in enumerate(self._events):
                if isinstance(event, Decode):
                    progress = True
                    self._advance(rank, self._decode(rank, event.groups, event.first))
                if not isinstance(event, Exchange):
                    continue
                if rank not in posted:
                    posted.add(rank)
                    progress = True
                    for destination, groups in event.outgoing.items():
                        self._mail[rank, destination].append(groups)
                        self.groups_moved += len(groups)
                if all(self._mail[origin, rank] for origin in event.incoming):
                    received = {origin: self._mail[origin, rank].popleft() for origin in event.incoming}
                    if any(len(received[origin]) != number for origin, number in event.incoming.items()):
                        raise PeerError(f"rank {rank} expected {event.incoming} groups and got others")
                    posted.discard(rank)
                    progress = True
                    self._advance(rank, received)

    def _kinds(self) -> str:
        return ", ".join(f"rank {rank}: {type(event).__name__}" for rank, event in enumerate(self._events))
