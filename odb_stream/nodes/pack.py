"""Pack: prepared samples enter the window and leave it as groups; drops and oversize samples are settled here."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torchdata.nodes import BaseNode

from odb_stream.batching.account import Account
from odb_stream.batching.footprint import Footprint, Size
from odb_stream.batching.groups import Group
from odb_stream.batching.planner import Planner
from odb_stream.config import Settings
from odb_stream.errors import ConfigError, OdbStreamError, OversizeError
from odb_stream.nodes.drops import Drops
from odb_stream.nodes.prepare import Outcome
from odb_stream.sample import START, Drop, Position, PreparedSample, SampleRef

Pass = Callable[[int], BaseNode[Outcome]]
"""Opens one pass of this rank over its data, by number."""


class PackSnapshot(NamedTuple):
    """Where packing stands: the pass, the reading position after the last record that arrived, and what is held."""

    pass_number: int
    position: Position
    held: tuple[SampleRef, ...]


class Pack(BaseNode[Group[PreparedSample]]):
    """Yields the groups of one rank; a round must be begun first, which sets the window.

    With ``repeat`` the data start again, as the next pass, whenever they end.
    """

    def __init__(
        self,
        open_pass: Pass,
        settings: Settings,
        footprint: Footprint,
        drops: Drops,
        *,
        first_pass: int,
        repeat: bool,
    ) -> None:
        super().__init__()
        self._open_pass = open_pass
        self._pass = first_pass
        self._source = open_pass(first_pass)
        self._repeat = repeat
        self._drops = drops
        self._oversize = settings.oversize
        self._footprint = footprint
        self.planner = Planner(self._footprint, self._draw, window=settings.window, lookahead=settings.lookahead)
        self._held: dict[int, PreparedSample] = {}
        self._next_ticket = 0
        self._admitted_in_pass = 0
        self._position = START
        self.solo = 0
        """Samples over the budget that were admitted because of ``oversize="solo"``."""
        self.received = 0
        """Records that arrived here, as samples or as drops."""

    @property
    def exhausted(self) -> bool:
        """Whether no further group will come."""
        return self.planner.exhausted

    def account(self) -> Account:
        """What this rank dropped so far, by reason, and how long samples waited."""
        return Account(dict(self._drops.by_reason), self.solo, self.planner.window.max_delay)

    def begin_round(self, number: int) -> int:
        """Set the window of a round and return how many groups to plan in it."""
        self.planner.begin_round(number)
        return self.planner.lookahead

    def next_group(self) -> Group[PreparedSample] | None:
        """The next group, or None when there is none."""
        tickets = self.planner.form_group()
        if tickets is None:
            return None
        samples = tuple(self._held.pop(ticket) for ticket in tickets)
        return Group.of(samples, tuple(map(size_of, samples)), self._footprint)

    def snapshot(self) -> PackSnapshot:
        """What a resume needs to bring this stage back."""
        return PackSnapshot(self._pass, self._position, tuple(sample.ref for sample in self._held.values()))

    def next(self) -> Group[PreparedSample]:
        group = self.next_group()
        if group is None:
            raise StopIteration
        return group

    def get_state(self) -> dict[str, Any]:
        return self.snapshot()._asdict()

    def _draw(self) -> tuple[int, Size] | None:
        """The next sample that may enter the window; on the way, count what may not."""
        while True:
            for outcome in self._source:
                self.received += 1
                self._position = outcome.record.position
                admitted = self._settle(outcome)
                if admitted is not None:
                    return admitted
            if not self._repeat:
                return None
            self._start_over()

    def _start_over(self) -> None:
        if not self._admitted_in_pass:
            raise ConfigError(
                f"closure is 'quota', but pass {self._pass} of this rank over its data held no sample to emit "
                f"(dropped: {dict(self._drops.by_reason)}): give every rank data, or use closure='join'"
            )
        self._admitted_in_pass = 0
        self._pass += 1
        self._position = START
        self._source = self._open_pass(self._pass)

    def _settle(self, outcome: Outcome) -> tuple[int, Size] | None:
        """Admit a sample under a new ticket, or count its drop, or raise its failure."""
        result = outcome.result
        if isinstance(result, OdbStreamError):
            raise result
        if isinstance(result, Drop):
            self._drops.count(result, outcome.record.where)
            return None
        size = size_of(result)
        if self._footprint.oversize(size) and not self._admits_oversize(outcome, size):
            return None
        ticket = self._next_ticket
        self._next_ticket += 1
        self._admitted_in_pass += 1
        self._held[ticket] = result
        return ticket, size

    def _admits_oversize(self, outcome: Outcome, size: Size) -> bool:
        budget = self._footprint.budget
        place = f"{outcome.record.where} has {size.length} tokens, but the budget is {budget.tokens}"
        if size.patches:
            place += f"; it has {size.patches} patches, and the budget is {budget.patches or 'without limit'}"
        if self._oversize == "error":
            raise OversizeError(
                f"{place}; raise Budget(tokens=...), cut with Tokenize(max_length=...), "
                'or set oversize="drop" or oversize="solo"'
            )
        if self._oversize == "drop":
            self._drops.count(Drop("oversize", place), outcome.record.where)
            return False
        self.solo += 1
        return True


BYTES_OF_A_PATCH = 3 * 2 * 16 * 16 * 4
"""What a decoded patch takes, about: three channels, two frames, 16 by 16 pixels, float32."""


def size_of(sample: PreparedSample) -> Size:
    """What batching needs to know of a sample; its bytes are those of the tokens and, once decoded, of the pixels."""
    patches = sum(image.patches for image in sample.images)
    return Size(
        length=sample.length,
        patches=patches,
        supervised=sample.supervised,
        bytes=sample.input_ids.nbytes + sample.labels.nbytes + patches * BYTES_OF_A_PATCH,
        images=len(sample.images),
    )
