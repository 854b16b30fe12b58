"""Samples, tokenizers and chains for the tests of stages."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from odb_stream.sample import Drop, Record, Sample, SampleRef

PLACE = r"train-3\.tar, key '00042' \(sample 7, byte offset 1536\)"
"""The place of every sample, which messages must name, as a pattern."""


def sample(seed: int = 0, epoch: int = 0, index: int = 7, stage: int = 0, **fields: object) -> Sample:
    """A sample at ``PLACE``; members with dots in their names are given as ``**{"0.jpg": ...}``."""
    made = Sample.of(Record(SampleRef(0, 3, index, 1536), "00042", "train-3.tar", epoch=epoch), fields, seed=seed)
    made.stage = stage
    return made


def through(stages: list, start: Sample) -> Sample | Drop:
    """A sample after these stages, as Prepare runs them; a Drop ends it."""
    for place, stage in enumerate(stages):
        start.stage = place
        start = stage(start)
        if not isinstance(start, Sample):
            break
    return start


def byte_level(words: str, specials: list[str], size: int) -> Tokenizer:
    """A byte-level BPE tokenizer of ``size`` tokens, trained on a few words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([words] * 20, trainer)
    return tokenizer
