"""Jobs of up to eight ranks over streams of sizes, and hypothesis strategies for them.

A sample's identity is (rank, number in the rank's stream); an endless stream counts on through its passes.
"""

from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import strategies as st

from odb_stream.batching.cost import Footprint, Size
from odb_stream.config import Budget

Identity = tuple[int, int]


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
