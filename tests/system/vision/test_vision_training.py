"""``run --train`` on the vision recipe: a tiny Qwen3-VL takes its batches in both layouts, and the loss falls."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from vision_support import backend, processor

from odb_stream.errors import ConfigError
from odb_stream.stages import ExpandVisualTokens, FixedTokens
from odb_stream.tiny_model import TinyTrainer, tiny_qwen3_vl

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_training_on_images_makes_the_loss_fall(tmp_path, layout):
    path = tmp_path / "report.json"
    options = ["--train", "--budget", "512", "--steps", "30", "--layout", layout, "--report", str(path)]
    command = [sys.executable, "-m", "odb_stream.cli.main", "run", str(ROOT / "pipelines" / "vision_chat.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    losses = report["loss"]
    assert len(losses) == report["steps"] == 30
    assert losses[0] == pytest.approx(6.6, abs=0.3)  # the logarithm of the vocabulary
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0]


def test_the_model_fits_what_the_processor_makes_of_images():
    for family, patch in (("qwen3_vl", 16), ("qwen2_vl", 14)):
        expand = ExpandVisualTokens(processor(family))
        config = tiny_qwen3_vl(400, 0, expand).config
        assert config.vision_config.patch_size == patch
        assert config.image_token_id == backend().token_to_id("<|image_pad|>")
        assert config.vision_start_token_id == backend().token_to_id("<|vision_start|>")
        assert config.text_config.use_cache is False
        assert 300_000 < TinyTrainer(400, 0, expand).parameters < 600_000


def test_another_family_of_images_is_refused():
    expand = ExpandVisualTokens(processor("qwen3_vl"), family=FixedTokens(4, (8, 8)))
    with pytest.raises(ConfigError, match="FixedTokens"):
        TinyTrainer(400, 0, expand)
