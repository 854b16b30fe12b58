"""Runs all ranks of a job in this process, and checks what must hold for every step of every run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from alignment_jobs import Identity, Job

from odb_stream.batching.cost import Counts, Group, Size, count
from odb_stream.batching.messages import Deliver
from odb_stream.batching.program import Program
from odb_stream.batching.simulate.lockstep import Lockstep
from odb_stream.batching.window import GroupPlanner
from odb_stream.checkpoint.state import DropCounts, HeldGroup, HeldSample, Place, WindowState
from odb_stream.sample import SampleRef

Step = tuple[Deliver, ...]


class BadRecord(Exception):
    """What a failing stream or decoder raises in these tests."""


def held_by(sample: Identity) -> HeldSample:
    """A sample as states name it."""
    rank, number = sample
    return HeldSample(SampleRef(0, rank, number, -1), 0)


def identity_of(held: HeldSample) -> Identity:
    """The inverse of :func:`held_by`."""
    return held.ref.shard, held.ref.index


class StreamPacker(GroupPlanner[Identity]):
    """A rank's packing stage over its stream: repeated for ever, or failing at a sample, where told to."""

    def __init__(self, job: Job, rank: int, *, fails_at: int | None = None, begin: Place | None = None) -> None:
        self.job, self.rank, self.fails_at = job, rank, fails_at
        self.failure = BadRecord(f"sample {fails_at} of rank {rank} is damaged")
        self.most_rounds = sum(map(len, job.streams)) + 5 if job.quota is None else 1_000
        self.drawn = 0
        self.handed_out: list[tuple[Identity, ...]] = []
        """Every group planned, as identities."""
        self.at_round: list[tuple[int, int]] = []
        """How many samples were drawn and groups handed out when each round began."""
        max_delay = 0 if begin is None else begin.round.window.max_delay
        super().__init__(job.footprint, window=job.window, lookahead=job.lookahead, max_delay=max_delay)
        self.dropped: list[Identity] = []
        """What proved broken in steps that have passed."""
        self._in_burst: list[tuple[int, Identity]] = []
        self._rounds_before = 0
        if begin is not None:
            window = begin.round.window
            self._rounds_before = begin.round.number + 1
            self.drawn = window.received
            sizes = [(held.ref.index, job.size(identity_of(held))) for held in window.held]
            self.planner.restore(sizes, list(window.waits), source_ended=window.source_ended)
            self.dropped = [tuple(map(int, name.split())) for name in begin.step.drops.by_reason]

    def draw(self) -> tuple[int, Size] | None:
        number = self.drawn
        if number == self.fails_at:
            raise self.failure
        stream = self.job.streams[self.rank]
        if number >= len(stream) and self.job.quota is None:
            return None
        self.drawn += 1
        return number, self.job.size((self.rank, number))

    def begin_round(self, number: int) -> int:
        assert number == self._rounds_before + len(self.at_round), "rounds are numbered from 0, without a gap"
        assert number <= self.most_rounds, "the run does not end"
        self.at_round.append((self.drawn, len(self.handed_out)))
        return super().begin_round(number)

    def take(self, tickets: list[int]) -> Group[Identity]:
        samples = tuple((self.rank, ticket) for ticket in tickets)
        self.handed_out.append(samples)
        return Group.of(samples, tuple(map(self.job.size, samples)), self.job.footprint)

    def broke(self, step: int, sample: Identity) -> None:
        self._in_burst.append((step, sample))

    def passed(self, step: int) -> None:
        self.dropped += [sample for at, sample in self._in_burst if at <= step]
        self._in_burst = [(at, sample) for at, sample in self._in_burst if at > step]

    def window_state(self) -> WindowState:
        window = self.planner.window
        return WindowState(
            pass_number=0,
            held=tuple(held_by((self.rank, ticket)) for ticket in window.tickets()),
            waits=tuple(window.waits()),
            source_ended=self.planner.source_ended,
            received=self.drawn,
            max_delay=window.max_delay,
        )

    def drops(self) -> DropCounts:
        """Each dropped sample as a reason of its own: tests compare which ones were dropped, not only how many."""
        return DropCounts(by_reason={f"{rank} {number}": 1 for rank, number in self.dropped})

    def held(self, group: Group[Identity]) -> HeldGroup:
        return tuple(map(held_by, group.samples))

    def reread(self, groups: Sequence[HeldGroup]) -> list[Group[Identity]]:
        again = [tuple(map(identity_of, held)) for held in groups]
        return [Group.of(one, tuple(map(self.job.size, one)), self.job.footprint) for one in again]


class Ranks:
    """All ranks of a job in this process.

    A rank in ``leaves`` has left its loop once that many steps were delivered; one in ``fails`` fails when it draws the
    sample of that number; one in ``spoils`` fails when it decodes its burst of that number. ``begin`` says, by rank,
    where to go on.
    """

    def __init__(
        self,
        job: Job,
        *,
        leaves: Mapping[int, int] | None = None,
        fails: Mapping[int, int] | None = None,
        spoils: Mapping[int, int] | None = None,
        begin: Sequence[Place | None] | None = None,
    ) -> None:
        self.job = job
        self.delivered = 0
        self.checkpoints: list[list[int]] = [[] for _ in range(job.ranks)]
        """By rank: how many steps had been delivered whenever the rank told its status."""
        self.decodings: list[list[int]] = [[] for _ in range(job.ranks)]
        """By rank: at which checkpoint the outcome of each burst that it decoded was told."""
        self.broken: list[Identity] = []
        self._leaves, self._spoils = leaves or {}, spoils or {}
        begin = begin or [None] * job.ranks
        self.packers = [
            StreamPacker(job, rank, fails_at=(fails or {}).get(rank), begin=begin[rank]) for rank in range(job.ranks)
        ]
        self.programs = [
            Program(
                rank=rank,
                ranks=job.ranks,
                groups=packer,
                saves=packer,
                footprint=job.footprint,
                seed=job.seed,
                epoch=job.epoch,
                closing=self._closing(rank),
                rebalance=job.rebalance,
                quota=job.quota,
                most_bytes=job.most_bytes,
                resume=begin[rank],
            )
            for rank, packer in enumerate(self.packers)
        ]
        self.lockstep = Lockstep(self.programs, self._decode)

    def steps(self) -> Iterator[Step]:
        """The steps, one by one."""
        for step in self.lockstep.steps():
            self.delivered += 1
            yield step

    def _closing(self, rank: int) -> Callable[[], bool]:
        def closing() -> bool:
            self.checkpoints[rank].append(self.delivered)
            return rank in self._leaves and self.delivered >= self._leaves[rank]

        return closing

    def _decode(
        self, rank: int, groups: list[Group[Identity] | None], first: int
    ) -> list[Group[Identity] | None] | Exception:
        number = len(self.decodings[rank])
        self.decodings[rank].append(len(self.checkpoints[rank]))
        if self._spoils.get(rank) == number:
            return BadRecord(f"burst {number} of rank {rank} cannot be decoded")
        for step, group in enumerate(groups, start=first):
            for sample in group.samples if group else ():
                if self.job.is_broken(sample):
                    self.packers[rank].broke(step, sample)
        return [group and self._whole_part(group) for group in groups]

    def _whole_part(self, group: Group[Identity]) -> Group[Identity] | None:
        whole = tuple(place for place, sample in enumerate(group.samples) if not self.job.is_broken(sample))
        self.broken += [sample for sample in group.samples if self.job.is_broken(sample)]
        return group.part(whole, self.job.footprint) if whole else None


@dataclass(frozen=True)
class Run:
    """A job that was run to its end without an error."""

    job: Job
    steps: list[Step]
    ranks: Ranks

    @property
    def rounds(self) -> int:
        """Rounds begun, the one that only found that all is over included."""
        return len(self.ranks.packers[0].at_round)

    def samples(self) -> list[Identity]:
        """Everything emitted, in order of step and rank."""
        return [sample for step in self.steps for deliver in step if deliver.group for sample in deliver.group.samples]

    def by_round(self) -> list[list[Step]]:
        """The steps of each round that had any."""
        rounds: dict[int, list[Step]] = {}
        for step in self.steps:
            rounds.setdefault(step[0].state.round.number, []).append(step)
        return list(rounds.values())


def run(job: Job) -> Run:
    """Run a job to its end; any error of a rank is an error here."""
    ranks = Ranks(job)
    steps = list(ranks.steps())
    assert ranks.lockstep.errors == {}
    return Run(job, steps, ranks)


def schedule(steps: list[Step]) -> list[tuple[object, ...]]:
    """What a schedule is: who emits which samples at which step, what all know of it, what idle ranks stand in with."""
    return [
        tuple(
            (
                deliver.group and deliver.group.samples,
                deliver.filler and deliver.filler.samples,
                deliver.totals,
                deliver.ends_epoch,
                deliver.state,
            )
            for deliver in step
        )
        for step in steps
    ]


def costs(step: Step) -> list[int]:
    """Padded tokens by rank, 0 where one idles."""
    return [deliver.group.counts.padded_tokens if deliver.group else 0 for deliver in step]


def check_steps(job: Job, steps: list[Step]) -> None:
    """A3, and that all ranks know the same true totals: what holds for every step of any run.

    The totals are counted again here, from the sizes in the streams.
    """
    seen = number = 0
    for step in steps:
        assert len(step) == job.ranks
        totals = step[0].totals
        counts = []
        for deliver in step:
            assert (deliver.totals, deliver.ends_epoch, deliver.state.step.index) == (
                totals,
                step[0].ends_epoch,
                step[0].state.step.index,
            )
            counts.append(check_group(job, deliver))
        together = Counts(*map(sum, zip(*counts, strict=True)))
        seen += together.samples
        assert together.samples, "a step on which nobody emits is skipped"
        assert (totals.step, totals.samples_seen) == (number, seen)
        assert (totals.samples, totals.tokens, totals.supervised) == together[:3]
        assert (totals.padded_tokens, totals.images) == (together.padded_tokens, together.images)
        assert totals.largest_padded == max(one.padded_tokens for one in counts)
        assert totals.idle_ranks == sum(not one.samples for one in counts)
        number += 1
        if step[0].ends_epoch:
            seen = number = 0


def check_group(job: Job, deliver: Deliver) -> Counts:
    """What one rank emits, counted again."""
    if deliver.group is None:
        return Counts()
    sizes = tuple(map(job.size, deliver.group.samples))
    assert deliver.group.sizes == sizes, "samples and sizes travel together"
    assert job.footprint.feasible(sizes) or (len(sizes) == 1 and job.footprint.oversize(sizes[0]))
    assert list(deliver.group.samples) == sorted(deliver.group.samples)
    assert not any(map(job.is_broken, deliver.group.samples))
    assert deliver.group.counts == count(sizes, job.footprint)
    assert deliver.filler is None
    return deliver.group.counts
