"""One source while a mix is read: the pass that it is in, and the record that it will give next."""

from collections.abc import Callable, Iterator

from odb_stream.errors import ShardError
from odb_stream.sample import START, PartPosition, Position, Record, in_one_source
from odb_stream.sources.source import Reading

MOST_EMPTY_PASSES = 64
"""Passes in a row that may hold nothing for a rank which had records in the first."""


class Part:
    """A rank's part of one source, pass after pass, from a place on; at least ``due`` passes are read.

    ``name`` is the source's, for messages; ``open_pass`` gives the rank's part of a pass by its number.
    """

    pass_number: int
    position: Position
    _records: Iterator[Record]
    _next: Record | None

    def __init__(
        self, name: str, open_pass: Callable[[int], Reading], place: PartPosition, *, due: int, rank: int
    ) -> None:
        self._name = name
        self._open_pass = open_pass
        self._due = due
        self._rank = rank
        self._begin(place.pass_number, place.position)
        self._go_on_to_due()

    @property
    def finished(self) -> bool:
        """Whether every pass that the epoch needs has ended."""
        return self.pass_number + (self._next is None) >= self._due

    @property
    def empty(self) -> bool:
        """Whether the pass that begins here has nothing for this rank."""
        return self._next is None and self.position == START

    def take(self) -> Record:
        """The next record, of a further pass where the one before has ended."""
        record = self._next or self._first_of_next_pass()
        self.position = in_one_source(record.position, self._name)
        self._next = next(self._records, None)
        self._go_on_to_due()
        return record

    def _begin(self, pass_number: int, position: Position = START) -> None:
        self.pass_number, self.position = pass_number, position
        self._records = iter(self._open_pass(pass_number).records(position))
        self._next = next(self._records, None)

    def _go_on_to_due(self) -> None:
        while self._next is None and self.pass_number + 1 < self._due:
            self._begin(self.pass_number + 1)

    def _first_of_next_pass(self) -> Record:
        for _ in range(MOST_EMPTY_PASSES):
            self._begin(self.pass_number + 1)
            if self._next is not None:
                return self._next
        raise ShardError(
            f"{self._name} held nothing for rank {self._rank} in {MOST_EMPTY_PASSES} passes in a row, but did before: "
            "it has too few samples for so many ranks, or its data have changed"
        )
