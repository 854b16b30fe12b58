"""Programs of gathers and exchanges: what every rank does, and what it must get."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from odb_stream.ranks.transport import Transport


@dataclass(frozen=True)
class Program:
    """Rounds of one gather of ``values`` integers each and one exchange; ``parcels`` maps (from, to) to a length."""

    size: int
    values: Sequence[int]
    parcels: Sequence[Mapping[tuple[int, int], int]] = field(default_factory=list)


def row(rank: int, number: int, length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng([rank, number]).integers(-(2**62), 2**62, length)


def parcel(sender: int, receiver: int, number: int, length: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng([sender, receiver, number]).integers(0, 256, length, dtype=np.uint8)


def run_program(transport: Transport, program: Program) -> None:
    """Run it on one rank, checking all that comes back."""
    me = transport.rank
    for number, length in enumerate(program.values):
        gathered = transport.gather(row(me, number, length))
        expected = np.array([row(rank, number, length) for rank in range(program.size)])
        assert gathered.dtype == np.int64
        np.testing.assert_array_equal(gathered, expected.reshape(program.size, length))
        parcels = program.parcels[number] if number < len(program.parcels) else {}
        outgoing = {to: parcel(me, to, number, size) for (sender, to), size in parcels.items() if sender == me}
        incoming = {sender: size for (sender, to), size in parcels.items() if to == me}
        if outgoing or incoming:
            received = transport.exchange(outgoing, incoming)
            assert received.keys() == incoming.keys()
            for sender, size in incoming.items():
                assert received[sender].dtype == np.uint8
                np.testing.assert_array_equal(received[sender], parcel(sender, me, number, size))


@st.composite
def program_strategy(draw: st.DrawFn) -> Program:
    size = draw(st.integers(1, 4))
    pairs = [(sender, to) for sender in range(size) for to in range(size) if sender != to]
    values = draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))
    chosen = st.dictionaries(st.sampled_from(pairs), st.integers(0, 200)) if pairs else st.just({})
    return Program(size, values, draw(st.lists(chosen, max_size=len(values))))


def seeded_program(size: int, seed: int) -> Program:
    generator = random.Random(seed)
    pairs = [(sender, to) for sender in range(size) for to in range(size) if sender != to]
    values = [generator.choice([0, 1, 7, 300]) for _ in range(4)]
    parcels = [
        {pair: generator.choice([0, 1, 1000, 70_000]) for pair in pairs if generator.random() < 0.5} for _ in values
    ]
    return Program(size, values, parcels)
