"""Collate: the samples of a step become one dict of tensors, padded or packed, as transformers expects them."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from odb_stream.batching.cost import Footprint
from odb_stream.config import Settings
from odb_stream.errors import ConfigError
from odb_stream.nodes.align import Step
from odb_stream.prepare.decoding import stacked
from odb_stream.sample import IGNORED_LABEL, PreparedSample, StepInfo
from odb_stream.stages.rope import rope_of

STEP_KEY = "odb_step"
"""The key under which a batch carries its StepInfo until ``pop_step`` takes it."""

Batch = dict[str, Any]


class Finished(NamedTuple):
    """A batch and the step that it was made from."""

    batch: Batch
    step: Step


def collate(steps: Iterator[Step], settings: Settings) -> Iterator[Finished]:
    """The batches of these steps."""
    footprint = Footprint.of(settings)
    build = padded if settings.layout == "padded" else packed
    for step in steps:
        batch = build(step.samples, footprint, settings.pad_token_id)
        if settings.pin_memory:
            batch = {key: value.pin_memory() if torch.is_tensor(value) else value for key, value in batch.items()}
        yield Finished(batch, step)


def pop_step(batch: Batch) -> StepInfo:
    """Take the StepInfo out of a batch; what is left are model inputs only.

    Raises:
        ConfigError: the batch has none, because it was taken already or the batch is not from a Loader.
    """
    info = batch.pop(STEP_KEY, None)
    if not isinstance(info, StepInfo):
        raise ConfigError(
            f"no step info in a batch with keys {sorted(batch)}: call pop_step once for each batch, on the dict that "
            "the Loader yielded"
        )
    return info


def padded(samples: Sequence[PreparedSample], footprint: Footprint, pad_token: int) -> Batch:
    """Rows of equal width: ``input_ids``, ``attention_mask`` and ``labels``, int64 of shape (samples, width).

    The width is the longest sample, rounded up to the multiple. Labels are not shifted.
    """
    width = footprint.rounded(max(sample.length for sample in samples))
    shape = (len(samples), width)
    ids = np.full(shape, pad_token, dtype=np.int64)
    labels = np.full(shape, IGNORED_LABEL, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.int64)
    for row, sample in enumerate(samples):
        length = sample.length
        ids[row, :length] = sample.input_ids
        labels[row, :length] = sample.labels
        mask[row, :length] = 1
    batch = {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(mask),
        "labels": torch.from_numpy(labels),
    }
    if any(sample.token_types is not None for sample in samples):
        types = np.zeros(shape, dtype=np.int64)
        for row, sample in enumerate(samples):
            types[row, : sample.length] = 0 if sample.token_types is None else sample.token_types
        batch["mm_token_type_ids"] = torch.from_numpy(types)
    return batch | visual(samples)


def packed(samples: Sequence[PreparedSample], footprint: Footprint, pad_token: int) -> Batch:
    """One row: ``input_ids``, ``labels`` and ``position_ids``, int64 of shape (1, width).

    Positions restart at 0 in each sample. ``cu_seq_lens_q/k`` (int32, shape (samples + 1,)) and ``max_length_q/k``
    (int) give the same boundaries to variable-length attention kernels. There is no attention mask, and ``use_cache``
    is False: only then does transformers separate packed samples by their positions. Padding up to a multiple is a
    sequence of its own, without labels, with one more entry in the boundaries. For models with M-RoPE ``position_ids``
    has shape (4, 1, width): these positions, then the three rope rows of each sample.
    """
    lengths = [sample.length for sample in samples]
    total = sum(lengths)
    width = footprint.rounded(total)
    ids = np.full(width, pad_token, dtype=np.int64)
    labels = np.full(width, IGNORED_LABEL, dtype=np.int64)
    np.concatenate([sample.input_ids for sample in samples], out=ids[:total])
    np.concatenate([sample.labels for sample in samples], out=labels[:total])
    if width > total:
        lengths.append(width - total)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    positions = np.arange(width, dtype=np.int64) - np.repeat(starts, lengths)
    rows = positions[None]
    if any(sample.rope is not None for sample in samples):
        rows = np.tile(positions, (4, 1))[:, None]
        rows[1:, 0, :total] = np.concatenate([rope_of(sample) for sample in samples], axis=1)
    boundaries = torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32))
    longest = max(lengths)
    return {
        "input_ids": torch.from_numpy(ids)[None],
        "labels": torch.from_numpy(labels)[None],
        "position_ids": torch.from_numpy(rows),
        "cu_seq_lens_q": boundaries,
        "cu_seq_lens_k": boundaries,
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
        **visual(samples),
    }


def visual(samples: Sequence[PreparedSample]) -> Batch:
    """``pixel_values`` (float32, (patches, dimensions of a patch)) and ``image_grid_thw`` (int64, (images, 3)).

    In the order of the samples and of their images. Empty if there are none.
    """
    pixels = [sample.pixels for sample in samples if sample.pixels is not None]
    if not pixels:
        return {}
    grids = [image.grid for sample in samples for image in sample.images]
    return {
        "pixel_values": torch.from_numpy(stacked(pixels)),
        "image_grid_thw": torch.tensor(grids, dtype=torch.int64),
    }
