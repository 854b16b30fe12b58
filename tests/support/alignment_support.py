"""Jobs of up to eight ranks over streams of sizes, hypothesis strategies for them, and their run in this process.

A sample's identity is (rank, number in the rank's stream); an endless stream counts on through its passes. What must
hold for every step of every run is checked here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import strategies as st

from odb_stream.batching.cost import Counts, Footprint, Group, Size, count
from odb_stream.batching.messages import Deliver
from odb_stream.batching.program import Program
from odb_stream.batching.simulate.lockstep import Lockstep
from odb_stream.batching.window import GroupPlanner
from odb_stream.checkpoint.state import DropCounts, HeldGroup, HeldSample, Place, WindowState
from odb_stream.config import Budget
from odb_stream.sample import SampleRef

Identity = tuple[int, int]
Step = tuple[Deliver, ...]


@dataclass(frozen=True)
class Job:
    """All that a schedule may depend on: the streams, by rank, the images that prove broken, and the settings."""

    streams: tuple[tuple[Size, ...], ...]
    footprint: Footprint = field(default_factory=lambda: Footprint("padded", Budget(16)))
    window: int = 4
    lookahead: int = 2
    rebalance: bool = True
    seed: int = 0
    epoch: int = 0
    quota: int | None = None
    most_bytes: int = 1 << 30
    broken: frozenset[Identity] = frozenset()

    @property
    def ranks(self) -> int:
        return len(self.streams)

    @property
    def everything(self) -> list[Identity]:
        """Every sample of one pass."""
        return [(rank, number) for rank, stream in enumerate(self.streams) for number in range(len(stream))]

    def size(self, sample: Identity) -> Size:
        """The size of a sample, in any pass."""
        rank, number = sample
        return self.streams[rank][number % len(self.streams[rank])]

    def is_broken(self, sample: Identity) -> bool:
        """Whether an image of a sample turns out broken, in any pass."""
        rank, number = sample
        return (rank, number % len(self.streams[rank])) in self.broken

    def normal(self, sizes: tuple[Size, ...]) -> bool:
        """Whether a group is none that goes alone over the budget."""
        return len(sizes) > 1 or not self.footprint.oversize(sizes[0])


layouts = st.sampled_from(["padded", "packed"])
sizes = st.builds(Size, st.integers(1, 70), st.integers(0, 6))
streams = st.lists(sizes, max_size=60)


@st.composite
def footprints(draw: st.DrawFn) -> Footprint:
    """Budgets of 4 to 48 tokens, with or without the other bounds, and room for a dummy image."""
    budget = Budget(
        draw(st.integers(4, 48)),
        patches=draw(st.none() | st.integers(1, 12)),
        samples=draw(st.none() | st.integers(1, 5)),
    )
    dummy_tokens, dummy_patches = draw(st.sampled_from([(0, 0), (0, 0), (2, 1)]))
    return Footprint(draw(layouts), budget, draw(st.integers(1, 4)), dummy_tokens, dummy_patches)


def seeded_stream(random: Random, number: int, longest: int, *, images: bool = False) -> tuple[Size, ...]:
    """A stream of this many samples, supervised tokens and bytes included; with ``images`` on half of them."""
    return tuple(
        Size(
            random.randint(1, longest),
            patches=random.choice([0, 0, 1, 5]),
            supervised=random.randint(0, 9),
            bytes=random.randint(0, 20),
            images=random.choice([0, 0, 1, 2]) if images else 0,
        )
        for _ in range(number)
    )


@st.composite
def jobs(
    draw: st.DrawFn,
    *,
    rebalance: bool | None = None,
    shortest: int = 0,
    longest: int = 24,
    broken: tuple[float, ...] = (0, 0.1, 0.9),
    images: bool | None = None,
) -> Job:
    """Jobs of 1 to 8 ranks, most with very uneven streams, of which any may be empty. Some samples exceed the budget.

    A third, or as ``images`` says, has images, some broken: a part, one of ``broken``, of the samples that have any.

    Windows and lookaheads lie below where the ramps start, so these are the values of every round, and streams are long
    enough for several rounds and drains. Sizes are filled in from a seed: drawing each by itself makes tiny streams.
    """
    footprint = draw(footprints())
    most_tokens = draw(st.sampled_from([3, footprint.budget.tokens // 2, footprint.budget.tokens + 2]))
    random = Random(draw(st.integers(0, 1 << 20)))
    ranks = draw(st.sampled_from([2, 1, 3, 4, 5, 6, 7, 8]))
    if images is None:
        images = draw(st.sampled_from([False, False, True]))
    numbers = st.integers(shortest, longest) | st.sampled_from([shortest, shortest + 1])
    job = Job(
        streams=tuple(
            seeded_stream(random, number, most_tokens, images=images)
            for number in draw(st.lists(numbers, min_size=ranks, max_size=ranks))
        ),
        footprint=footprint,
        window=draw(st.integers(1, 12)),
        lookahead=draw(st.integers(1, 5)),
        rebalance=draw(st.booleans()) if rebalance is None else rebalance,
        seed=draw(st.integers(0, 3)),
        epoch=draw(st.integers(0, 3)),
        most_bytes=draw(st.sampled_from([0, 30, 200, 1 << 30])),
    )
    part = draw(st.sampled_from(broken)) if images else 0
    return replace(
        job,
        broken=frozenset(sample for sample in job.everything if job.size(sample).images and random.random() < part),
    )


def sound_jobs(*, rebalance: bool | None = None) -> st.SearchStrategy[Job]:
    """Jobs in which no image proves broken, so that every group is emitted as it was planned."""
    return jobs(rebalance=rebalance, broken=(0,))


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
