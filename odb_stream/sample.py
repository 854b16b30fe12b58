"""What flows: a Record as read, a Sample inside the stages, a PreparedSample after them; and the StepInfo of a step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from odb_stream.errors import StateError

IGNORED_LABEL = -100
"""Label of a position without loss: the ``ignore_index`` of ``torch.nn.functional.cross_entropy``."""

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class SampleRef(NamedTuple):
    """Where a sample comes from; with the epoch it is the sample's identity.

    ``source`` is the position of the source in a mix (0 when there is one), ``shard`` the number of the shard in the
    sorted shard list (for a map-style dataset: the owner rank), ``index`` the sample's number in the shard or dataset,
    ``offset`` the byte at which its first tar header starts (-1 for a dataset).
    """

    source: int
    shard: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    offset: int


class Remaining(NamedTuple):
    """Samples of one pass over one source that are still to be read: numbers ``start`` to ``stop`` of one shard.

    ``epoch`` is the pass. The items of a dataset count as one shard, 0. It is defined beside the positions because
    saved states hold such rows, and states are below the sources.
    """

    source: int
    epoch: int
    shard: int
    start: int
    stop: int


class Position(NamedTuple):
    """Where a rank is in its reading just after a record, as four integers, so that reading can continue from there.

    ``segment`` counts the segments (shards or parts of shards) of this rank's plan. ``index`` and ``offset`` give the
    sample number and the byte at which the current shuffle block starts, ``place`` how many samples of that block
    were read. The start of an epoch is ``START``.
    """

    segment: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    offset: int
    place: int


START = Position(0, 0, 0, 0)


class PartPosition(NamedTuple):
    """Where reading is in one source of a mix: the pass over it, the position there, and its turns so far.

    ``turns`` counts the records that this source gave. It restarts whenever a source that ended leaves the schedule.
    """

    pass_number: int
    position: Position
    turns: int


class MixPosition(NamedTuple):
    """Where a rank is in its reading of a mix just after a record: a part for each source, in the mix's order."""

    parts: tuple[PartPosition, ...]


ReadingPosition = Position | MixPosition
"""A position in one source or in a mix; ``START`` is the start of either."""


def position_state(position: ReadingPosition) -> list[Any]:
    """A position as plain lists of integers, fit for JSON; :func:`position_from` reads it back."""
    if isinstance(position, Position):
        return list(position)
    return [[part.pass_number, list(part.position), part.turns] for part in position.parts]


def position_from(state: Sequence[Any]) -> ReadingPosition:
    """The position that :func:`position_state` wrote. Raises StateError for anything else."""
    try:
        if _are_integers(state, 4):
            return Position(*state)
        parts = tuple(PartPosition(number, Position(*place), turns) for number, place, turns in state)
    except (TypeError, ValueError) as error:
        raise StateError(f"{state!r} is not a reading position: load an unchanged copy of the state") from error
    if not parts or not all(_are_integers((part.pass_number, *part.position, part.turns), 6) for part in parts):
        raise StateError(f"{state!r} is not a reading position: load an unchanged copy of the state")
    return MixPosition(parts)


def in_one_source(position: ReadingPosition, name: str) -> Position:
    """The position, which must be in a single source, called ``name``. Raises StateError for a position in a mix."""
    if isinstance(position, MixPosition):
        raise StateError(f"{name} is not a mix, but the position is one in a mix of {len(position.parts)} sources")
    return position


def _are_integers(values: Sequence[Any], count: int) -> bool:
    return len(values) == count and all(type(value) is int and value >= -1 for value in values)


@dataclass(frozen=True, slots=True)
class Record:
    """One undecoded sample as the source read it.

    ``members`` maps an extension ("json", "0.jpg") to the bytes of that member. It is empty for a map-style dataset,
    whose items are fetched in the workers. ``shard`` is the shard's address, fit for logs. ``position`` is the
    reading position just after this record. ``epoch`` counts the passes over its data: with ``ref`` it is the sample's
    identity, and all draws come from it. ``damage`` is set where the shard is damaged: the sample cannot be read whole,
    ``members`` is empty, and it is dropped for this reason.
    """

    ref: SampleRef
    key: str
    shard: str
    members: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    position: ReadingPosition = START
    epoch: int = 0
    damage: "Drop | None" = None

    @property
    def where(self) -> str:
        """The place, for messages."""
        return describe_place(self.shard, self.key, self.ref)


def describe_place(shard: str, key: str, ref: SampleRef) -> str:
    """Where a sample is: shard, key, number and, in a tar file, byte offset."""
    at_byte = f", byte offset {ref.offset}" if ref.offset >= 0 else ""
    return f"{shard}, key {key!r} (sample {ref.index}{at_byte})"


class Sample(dict[str, Any]):
    """A sample on its way through the stages: a dict of named fields that knows where it comes from.

    Fields that the shipped stages read and write: ``messages`` and ``tools`` (from ``KEY.json``), ``text`` (from
    ``KEY.txt`` or ChatTemplate), ``input_ids`` and ``labels`` (from Tokenize). A stage may add others. Random draws
    come from :func:`odb_stream.seeds.generator`, which needs the attributes below and nothing else.

    Attributes: ``ref``, ``key`` and ``shard`` say where the sample is stored; ``seed`` and ``epoch`` are the run's;
    ``stage`` is the index, in the pipeline, of the stage that the sample is in.
    """

    __slots__ = ("epoch", "key", "ref", "seed", "shard", "stage")

    ref: SampleRef
    key: str
    shard: str
    seed: int
    epoch: int
    stage: int

    @classmethod
    def of(cls, record: Record, fields: Mapping[str, Any], *, seed: int) -> "Sample":
        """The sample of a record, with these fields."""
        sample = cls(fields)
        sample.ref, sample.key, sample.shard = record.ref, record.key, record.shard
        sample.seed, sample.epoch, sample.stage = seed, record.epoch, 0
        return sample

    def with_fields(self, fields: Mapping[str, Any]) -> "Sample":
        """The same sample (same place and draws) with other fields."""
        sample = type(self)(fields)
        sample.ref, sample.key, sample.shard = self.ref, self.key, self.shard
        sample.seed, sample.epoch, sample.stage = self.seed, self.epoch, self.stage
        return sample

    @property
    def where(self) -> str:
        """The place, for messages."""
        return describe_place(self.shard, self.key, self.ref)


@dataclass(frozen=True, slots=True)
class Drop:
    """Returned by a stage instead of a sample: leave this one out and count it under ``reason``.

    ``reason`` is a short name in snake_case (it becomes a key of ``report()["dropped"]``), ``detail`` one line for the
    log. ``damaged`` marks a sample whose data are broken, unlike one that is merely not wanted: it counts against the
    failure budget and goes into the quarantine file.
    """

    reason: str
    detail: str = ""
    damaged: bool = False


Stage = Callable[[Sample], Sample | Drop]
"""One step of a pipeline, picklable. If it returns another mapping, the sample takes the fields of that mapping."""


class Op(NamedTuple):
    """What one image transform will do to one image: the transform's index in the pipeline, and its drawn numbers."""

    place: int
    parameters: tuple[float, ...]


class PreparedImage(NamedTuple):
    """An image that is measured and not yet decoded: its compressed file and what to do to its pixels.

    ``data`` is uint8 of shape (bytes,). ``grid`` counts patches in time, height and width after all ``ops`` and the
    model's own resizing; ``features`` is the number of tokens that the image takes.
    """

    data: Bytes
    ops: tuple[Op, ...]
    grid: tuple[int, int, int]
    features: int

    @property
    def patches(self) -> int:
        """Patches that the vision encoder sees."""
        time, height, width = self.grid
        return time * height * width


class HeldPixels(Protocol):
    """The decoded images of a sample, in a form that gives their pixels."""

    def pixels(self) -> FloatArray:
        """The pixels of all images, float32 of shape (patches, dimensions of a patch)."""


class PreparedSample(NamedTuple):
    """A sample after every stage: its true cost is known and it can be placed in a batch.

    ``input_ids`` and ``labels`` are int32 of shape (length,); labels are not shifted and hold ``IGNORED_LABEL`` where
    there is no loss, on the first token always. ``supervised`` counts the labels that count after the causal shift.
    In a vision pipeline ``token_types`` (int32, (length,)) is 1 on image tokens and ``rope`` (int32, (3, length)) holds
    the M-RoPE positions; otherwise they are None. ``pixels`` (float32, (patches, dimensions of a patch), or in a form
    with fewer bytes) exist once the images are decoded, just before the sample is emitted. ``ref`` and ``epoch``
    are the identity of its record; ``origin`` holds its shard and key where an image may still prove broken.
    """

    ref: SampleRef
    input_ids: IntArray
    labels: IntArray
    supervised: int
    images: tuple[PreparedImage, ...] = ()
    token_types: IntArray | None = None
    rope: IntArray | None = None
    pixels: FloatArray | HeldPixels | None = None
    epoch: int = 0
    origin: tuple[str, str] | None = None

    @property
    def length(self) -> int:
        """Tokens after every stage."""
        return len(self.input_ids)

    @property
    def where(self) -> str:
        """The place of a sample with images, for messages."""
        return describe_place(*(self.origin or ("", "")), self.ref)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInfo:
    """What a training loop must know of one step; taken from a batch by ``pop_step``.

    Counts without a prefix are this rank's, ``global_*`` are over all ranks. Tokens are real tokens; padded tokens
    are the tensor's size (rows x columns). ``loss_scale`` turns this rank's token-mean loss into its share of the
    token mean over the whole global batch (over the accumulation window when there is one). ``refs`` are the
    identities of this rank's samples in batch order. ``samples_seen`` counts samples over all ranks in this epoch,
    this step included. An ``idle`` step holds a real batch with weight 0, which is not counted here.
    ``accum_index`` is the step's place in its accumulation window, from 0; ``accum_last`` is True where the window
    ends: step the optimizer. ``has_images`` is of this rank's batch, ``any_rank_has_images`` of any rank's: where
    ranks differ, see ``mixed_modality`` of the Loader.
    """

    epoch: int
    step: int
    refs: tuple[SampleRef, ...]
    samples: int
    tokens: int
    padded_tokens: int
    supervised_tokens: int
    global_samples: int
    global_tokens: int
    global_supervised_tokens: int
    samples_seen: int
    loss_scale: float
    accum_index: int = 0
    accum_last: bool = True
    idle: bool = False
    has_images: bool = False
    any_rank_has_images: bool = False
