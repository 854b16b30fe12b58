"""The vision demo shards are what their tool writes, are whole, and hold images of every form."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from import_graph import ROOT
from PIL import ExifTags, Image

from odb_stream.shards.check import check_shard
from odb_stream.shards.tar import read_samples
from odb_stream.stages.images.files import open_image

VISION = ROOT / "shards" / "vision"
SHARDS = sorted(VISION.glob("chat-*.tar"))


def samples(folder: Path) -> dict[str, dict[str, bytes]]:
    """Members by key, in the order of the shards."""
    return {
        sample.key: dict(sample.members)
        for shard in sorted(folder.glob("chat-*.tar"))
        for sample in read_samples(str(shard))
    }


def write(folder: Path) -> None:
    """Run the tool."""
    tool = ROOT / "tools" / "make_vision_shards.py"
    subprocess.run([sys.executable, str(tool), str(folder)], check=True, timeout=240)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the tool has just written."""
    folder = tmp_path_factory.mktemp("vision")
    write(folder)
    return folder


def test_the_tool_writes_the_same_files_again(made: Path, tmp_path: Path) -> None:
    """Two runs here give the same bytes; those in the repository may come from other versions of the codecs."""
    names = {path.relative_to(VISION) for path in VISION.rglob("*") if path.is_file()}
    assert names == {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    write(tmp_path)
    for name in sorted(names):
        assert (made / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_what_is_drawn_is_in_the_repository(made: Path) -> None:
    new, old = samples(made), samples(VISION)
    assert list(new) == list(old)
    for key, members in new.items():
        assert list(members) == list(old[key]), key
        assert members["json"] == old[key]["json"], key
        for name in set(members) - {"json"}:
            drawn, kept = (np.asarray(open_image(data), dtype=int) for data in (members[name], old[key][name]))
            assert drawn.shape == kept.shape, (key, name)
            # Lossy codecs differ a little from version to version; a colour or a shape would by far more.
            assert abs(drawn - kept).mean() < 2, (key, name)


def test_the_processor_comes_out_the_same(made: Path) -> None:
    for name in ("preprocessor_config.json", "tokenizer_config.json"):
        assert (made / "processor" / name).read_text() == (VISION / "processor" / name).read_text()
    new, old = (json.loads((folder / "processor" / "tokenizer.json").read_text()) for folder in (made, VISION))
    assert new["model"]["vocab"] == old["model"]["vocab"]
    assert [token["content"] for token in new["added_tokens"]] == [
        "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
        "<|video_pad|>",
    ]  # fmt: skip


def test_they_are_small() -> None:
    assert sum(path.stat().st_size for path in VISION.rglob("*")) < 3_000_000


@pytest.mark.parametrize("shard", SHARDS, ids=lambda shard: shard.name)
def test_a_shard_is_whole_and_its_index_fits(shard: Path) -> None:
    report = check_shard(str(shard))
    assert report.problems == ()
    assert (report.samples, report.index) == (100, "good")


def test_they_hold_chats_of_every_kind() -> None:
    held = samples(VISION)
    chats = [json.loads(members["json"]) for members in held.values()]
    parts = [
        part
        for chat in chats
        for message in chat["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    assert {len(members) - 1 for members in held.values()} == {0, 1, 2, 3, 4}
    assert {message["role"] for chat in chats for message in chat["messages"]} == {"system", "user", "assistant"}
    assert {"image" in part for part in parts if part["type"] == "image"} == {True, False}
    assert any(len(chat["messages"]) > 5 for chat in chats)
    assert any("<|image_pad|>" in str(chat) for chat in chats)
    questions = [chat["messages"][-2]["content"] for chat in chats]
    assert {parts[0]["type"] for parts in questions if isinstance(parts, list)} == {"text", "image"}


def test_they_hold_images_of_every_form() -> None:
    images = [
        Image.open(io.BytesIO(data))
        for members in samples(VISION).values()
        for name, data in members.items()
        if name != "json"
    ]
    assert {image.format for image in images} == {"JPEG", "PNG", "WEBP"}
    assert {image.mode for image in images} == {"RGB", "RGBA", "P"}
    assert any(image.info.get("progressive") for image in images)
    assert any(image.getexif().get(ExifTags.Base.Orientation) == 6 for image in images)
    longer, shorter = (pick(size for image in images for size in image.size) for pick in (max, min))
    assert (shorter, longer > 900) == (32, True)
    assert max(image.width / image.height for image in images) > 10
