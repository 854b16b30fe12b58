"""transformers' Trainer on a loader: exact token means, progress by samples, checkpoints that carry the loader."""

from odb_stream.adapters.huggingface.trainer import LoaderMixin as LoaderMixin
from odb_stream.adapters.huggingface.trainer import StreamTrainer as StreamTrainer
