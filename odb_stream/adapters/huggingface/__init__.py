"""Hugging Face: the Trainer and TRL on a loader, the checks of models, and the state in their checkpoints."""

from odb_stream.adapters.huggingface.trainer import LoaderMixin as LoaderMixin
from odb_stream.adapters.huggingface.trainer import StreamTrainer as StreamTrainer
