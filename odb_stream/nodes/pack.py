"""Pack: prepared samples enter the window and leave it as groups. Counts drops, and decides on oversize samples."""

from collections.abc import Callable, Iterator, Sequence

from odb_stream.batching.cost import Footprint, Group, Size
from odb_stream.batching.totals import RankReport
from odb_stream.batching.window import GroupPlanner
from odb_stream.checkpoint.state import DropCounts, HeldGroup, HeldSample, WindowState
from odb_stream.config import Settings
from odb_stream.errors import ConfigError, OdbStreamError, OversizeError
from odb_stream.nodes.drops import Drops
from odb_stream.nodes.prepare import RecordOutcome
from odb_stream.sample import START, Drop, PreparedSample, ReadingPosition, Record

OpenPass = Callable[[int, ReadingPosition], Iterator[RecordOutcome]]
"""Opens a pass of this rank over its data: its number, and the position from which to read."""

Reread = Callable[[Sequence[HeldSample]], list[PreparedSample]]
"""Reads and prepares samples again. Raises StateError if one of them is dropped now."""


class Pack(GroupPlanner[PreparedSample]):
    """The packing stage of one rank, which its program drives: begin a round, then take its groups one by one.

    With ``repeat`` the data start again, as the next pass, whenever they end. ``begin`` is where to continue; the
    samples that it holds are read again when the first round begins.
    """

    def __init__(
        self,
        open_pass: OpenPass,
        reread: Reread,
        settings: Settings,
        footprint: Footprint,
        drops: Drops,
        *,
        begin: WindowState,
        repeat: bool,
    ) -> None:
        self._open_pass = open_pass
        self._reread = reread
        self._repeat = repeat
        self._drops = drops
        self._oversize = settings.oversize
        super().__init__(
            footprint, window=settings.window, lookahead=settings.lookahead, max_delay=begin.max_delay
        )
        self._held: dict[int, PreparedSample] = {}
        self._next_ticket = 0
        self._begin: WindowState | None = begin
        self._pass = begin.pass_number
        self._position = begin.position
        self._admitted_in_pass = begin.admitted_in_pass
        self._source = open_pass(self._pass, self._position)
        self.solo = begin.solo
        """Samples over the budget that were admitted because of ``oversize="solo"``."""
        self.received = begin.received
        """Records that arrived, as samples or as drops."""

    def report(self) -> RankReport:
        """What this rank dropped so far, by reason, and how long samples waited."""
        drops, max_delay = self._drops, self.planner.window.max_delay
        return RankReport(dict(drops.by_reason), self.solo, max_delay, drops.damaged, self.received)

    def begin_round(self, number: int) -> int:
        """Set the window of a round and return how many groups to plan in it."""
        self._drops.flush()
        begin, self._begin = self._begin, None
        if begin is not None:  # only now: reading may fail, and in a round every rank is told of a failure
            held = [(self._keep(sample), size_of(sample)) for sample in self._reread(begin.held)]
            self.planner.restore(held, list(begin.waits), source_ended=begin.source_ended)
        return super().begin_round(number)

    def take(self, tickets: list[int]) -> Group[PreparedSample]:
        """The group of the samples that were held under these tickets."""
        return self._group([self._held.pop(ticket) for ticket in tickets])

    def passed(self, step: int) -> None:
        """Count what broke in the steps of the round up to this one."""
        self._drops.release(step)

    def window_state(self) -> WindowState:
        """What a resume needs to continue planning here."""
        return WindowState(
            pass_number=self._pass,
            position=self._position,
            held=tuple(map(held_by, self._held.values())),
            waits=tuple(self.planner.window.waits()),
            source_ended=self.planner.source_ended,
            received=self.received,
            admitted_in_pass=self._admitted_in_pass,
            solo=self.solo,
            max_delay=self.planner.window.max_delay,
        )

    def drops(self) -> DropCounts:
        return self._drops.counts()

    def held(self, group: Group[PreparedSample]) -> HeldGroup:
        """The references by which the samples of a group are read again."""
        return tuple(map(held_by, group.samples))

    def reread(self, groups: Sequence[HeldGroup]) -> list[Group[PreparedSample]]:
        """These groups, their samples read and prepared again."""
        samples = iter(self._reread([held for group in groups for held in group]))
        return [self._group([next(samples) for _ in group]) for group in groups]

    def _group(self, samples: list[PreparedSample]) -> Group[PreparedSample]:
        return Group.of(tuple(samples), tuple(map(size_of, samples)), self.footprint)

    def draw(self) -> tuple[int, Size] | None:
        """The next sample that may enter the window. Samples before it that may not are counted as dropped."""
        while True:
            for outcome in self._source:
                self.received += 1
                self._position = outcome.record.position
                admitted = self._settle(outcome)
                if admitted is not None:
                    self._admitted_in_pass += 1
                    return self._keep(admitted), size_of(admitted)
            if not self._repeat:
                return None
            self._start_over()

    def _start_over(self) -> None:
        # A pass without a sample would be followed by others without one, forever: no step could ever be made.
        if not self._admitted_in_pass:
            raise ConfigError(
                f"closure is 'quota', but pass {self._pass} of this rank over its data had no sample to emit "
                f"(dropped: {dict(self._drops.by_reason)}): give every rank data, or use closure='join'"
            )
        self._admitted_in_pass = 0
        self._pass += 1
        self._position = START
        self._source = self._open_pass(self._pass, START)

    def _keep(self, sample: PreparedSample) -> int:
        """Hold a sample under a new ticket: batching sees only tickets and sizes."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._held[ticket] = sample
        return ticket

    def _settle(self, outcome: RecordOutcome) -> PreparedSample | None:
        """The sample to admit, or None after counting its drop. Raises the error of a failed record."""
        result = outcome.result
        if isinstance(result, OdbStreamError):
            raise result
        if isinstance(result, Drop):
            self._drops.count(result, outcome.record)
            return None
        size = size_of(result)
        if self.footprint.oversize(size) and not self._admits_oversize(outcome.record, size):
            return None
        return result

    def _admits_oversize(self, record: Record, size: Size) -> bool:
        budget = self.footprint.budget
        place = f"{record.where} has {size.length} tokens, but the budget is {budget.tokens}"
        if size.patches:
            place += f"; it has {size.patches} patches, and the budget is {budget.patches or 'without limit'}"
        if self._oversize == "error":
            raise OversizeError(
                f"{place}; raise Budget(tokens=...), cut with Tokenize(max_length=...), "
                'or set oversize="drop" or oversize="solo"'
            )
        if self._oversize == "drop":
            self._drops.count(Drop("oversize", place), record)
            return False
        self.solo += 1
        return True


def held_by(sample: PreparedSample) -> HeldSample:
    """The reference by which a sample is read again."""
    return HeldSample(sample.ref, sample.epoch)


BYTES_OF_A_PATCH = 3 * 2 * 16 * 16 * 4
"""About what a decoded patch takes: three channels, two frames, 16 by 16 pixels, float32."""


def size_of(sample: PreparedSample) -> Size:
    """What batching needs to know of a sample. Its bytes include the pixels that its images will have once decoded."""
    patches = sum(image.patches for image in sample.images)
    return Size(
        length=sample.length,
        patches=patches,
        supervised=sample.supervised,
        bytes=sample.input_ids.nbytes + sample.labels.nbytes + patches * BYTES_OF_A_PATCH,
        images=len(sample.images),
    )
