"""Chat templates of three vision families, their processors, pictures and a dataset of chats to go with them."""

import io
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageOps
from stage_samples import byte_level
from tokenizers import Tokenizer

import odb_stream as odb
from odb_stream import stages

SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>",
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<image>",
]  # fmt: skip

# Any role may hold images; a chat without a system message gets one; images may be numbered.
QWEN2_VL = """
{%- set seen = namespace(images=0) -%}
{%- for message in messages -%}
    {%- if loop.first and message.role != 'system' -%}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
    {%- endif -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.content is string -%}
        {{- message.content -}}
    {%- else -%}
        {%- for part in message.content -%}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}
                {%- set seen.images = seen.images + 1 -%}
                {%- if add_vision_id -%}{{- 'Picture ' + seen.images | string + ': ' -}}{%- endif -%}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
            {%- elif 'text' in part -%}
                {{- part.text -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

# The system message renders text only, so do answers; tools, calls and results of tools, which may hold images.
QWEN3_VL = """
{%- macro said(content, images=false) -%}
    {%- if content is string -%}{{- content -}}{%- else -%}
        {%- for part in content -%}
            {%- if part.type == 'image' or 'image' in part -%}
                {%- if images -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}{%- endif -%}
            {%- elif 'text' in part -%}
                {{- part.text -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- if tools -%}
    {{- '<|im_start|>system\\n' -}}
    {%- if messages[0].role == 'system' -%}{{- said(messages[0].content) + '\\n\\n' -}}{%- endif -%}
    {{- '# Tools\\n' -}}
    {%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}
    {{- '<|im_end|>\\n' -}}
{%- elif messages[0].role == 'system' -%}
    {{- '<|im_start|>system\\n' + said(messages[0].content) + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {{- '<|im_start|>user\\n' + said(message.content, true) + '<|im_end|>\\n' -}}
    {%- elif message.role == 'assistant' -%}
        {{- '<|im_start|>assistant\\n' + said(message.content) -}}
        {%- for call in message.tool_calls or [] -%}
            {%- if (loop.first and message.content) or not loop.first -%}{{- '\\n' -}}{%- endif -%}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\\n' -}}
    {%- elif message.role == 'tool' -%}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
        {{- '\\n<tool_response>\\n' + said(message.content, true) + '\\n</tool_response>' -}}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

# Takes no strings; the images of a turn come first, and what the assistant says is marked.
PARTS_ONLY = """
{%- for message in messages -%}
    {{- message.role | upper + ': ' -}}
    {%- for part in message.content | selectattr('type', 'equalto', 'image') -%}{{- '<image>\\n' -}}{%- endfor -%}
    {%- for part in message.content | selectattr('type', 'equalto', 'text') -%}
        {%- if message.role == 'assistant' -%}
            {%- generation -%}{{- part.text + '<|im_end|>' -}}{%- endgeneration -%}
        {%- else -%}{{- part.text + ' ' -}}{%- endif -%}
    {%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}
"""

# Reads lists; an image is what the variable `mark` says, nothing without it.
FIXED = """
{%- for m in messages -%}
    {{- '<|im_start|>' + m.role + '\\n' -}}
    {%- if m.content is string -%}{{- m.content -}}{%- else -%}
        {%- for part in m.content -%}{{- mark if part.type == 'image' else part.text -}}{%- endfor -%}
    {%- endif -%}{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

TEMPLATES = {"qwen2_vl": QWEN2_VL, "qwen2_5_vl": QWEN2_VL, "qwen3_vl": QWEN3_VL}
FAMILIES = tuple(TEMPLATES)


@cache
def backend() -> Tokenizer:
    """A byte-level tokenizer with the special tokens of the family."""
    return byte_level("user assistant system what is in this picture a cat and a dog 你好 \n", SPECIALS, 400)


@cache
def processor(family: str = "qwen2_vl", template: str | None = None):
    """The processor of a family as transformers has it, with small limits and without video."""
    from transformers import PreTrainedTokenizerFast, Qwen2_5_VLProcessor, Qwen2VLProcessor, Qwen3VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    kind = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor, "qwen3_vl": Qwen3VLProcessor}[family]

    class ForImages(kind):
        def __init__(self, image_processor=None, tokenizer=None, chat_template=None):
            super().__init__(image_processor, tokenizer, None, chat_template=chat_template)

    if family == "qwen3_vl":
        half = [0.5, 0.5, 0.5]
        size = {"shortest_edge": 32 * 32 * 4, "longest_edge": 32 * 32 * 64}
        images = Qwen2VLImageProcessorPil(patch_size=16, size=size, image_mean=half, image_std=half)
    else:
        images = Qwen2VLImageProcessorPil(size={"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 64})
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend(),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    return ForImages(images, tokenizer, chat_template=template or TEMPLATES[family])


def picture(width: int, height: int, *, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Coloured noise on a gradient, so that no two places look alike."""
    channels = len(Image.new(mode, (1, 1)).getbands())
    noise = np.random.default_rng(seed).integers(0, 96, (height, width, channels))
    slope = np.linspace(0, 80, width)[None, :, None] + np.linspace(0, 79, height)[:, None, None]
    array = (noise + slope).astype(np.uint8)
    return Image.fromarray(array[..., 0] if channels == 1 else array, mode)


def encoded(image: Image.Image, kind: str = "PNG", **settings: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def on_white(data: bytes) -> Image.Image:
    """An image file as Pillow shows it: upright, the first frame on white."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def processed(model, messages: list, files: list[bytes]) -> dict:
    """What the processor of transformers gives for a chat and its images."""
    text = model.apply_chat_template(messages, tokenize=False)
    return model(text=[text], images=[on_white(file) for file in files] or None, return_tensors="np")


def exif(orientation: object) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def image_file(width: int = 60, height: int = 40, *, seed: int = 0) -> bytes:
    return encoded(picture(width, height, seed=seed))


def turn(role: str, *parts: object) -> dict[str, object]:
    """A message: each string is a text part, each None an unnamed image, each 1-tuple an image of that name."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image"} | ({} if part is None else {"image": part[0]})
        for part in parts
    ]
    return {"role": role, "content": content}


def members(*files: bytes) -> dict[str, bytes]:
    """Files as the members of a key: 0.png, 1.png and so on."""
    return {f"{number}.png": file for number, file in enumerate(files)}


def image_parts_of(messages: list) -> int:
    return sum(part["type"] == "image" for m in messages if isinstance(m["content"], list) for part in m["content"])


CHATS = {
    "before": [turn("user", None, "what is it?"), turn("assistant", "a cat")],
    "after": [turn("user", "what is it?", None), turn("assistant", "a cat")],
    "between": [turn("user", "is", None, "like", None, "?"), turn("assistant", "yes")],
    "adjacent": [turn("user", None, None, None, "same?"), turn("assistant", "no")],
    "alone": [turn("user", None), turn("assistant", "a cat")],
    "system": [turn("system", "be brief"), turn("user", None, "hm"), turn("assistant", "a cat")],
    "string system": [{"role": "system", "content": "be brief"}, turn("user", None, "hm"), turn("assistant", "a cat")],
    "turns": [
        turn("user", None, "hm"),
        turn("assistant", "a cat"),
        turn("user", "and", None),
        {"role": "assistant", "content": "a dog"},
        turn("user", None),
        turn("assistant", "a cat"),
        turn("user", "sure?"),
        turn("assistant", " yes \n"),
    ],
    "blank texts": [turn("user", "", None, " ", None, ""), turn("assistant", "a", "", " b")],
    "empty answer": [turn("user", None), turn("assistant", "")],
    "text only": [turn("user", "what", " is it?"), turn("assistant", "a cat")],
    "same words": [turn("user", "a", None, "a", None, "a"), turn("assistant", "a")],
}

WORDS = ["red", "green", "blue", "big", "small", "left", "right", "above", "below", "of", "the", "and"]


@dataclass(frozen=True)
class Chats:
    """``size`` chats: item i has i % 3 images of its own sizes, and at least ``least``.

    With ``broken``, the images of item 5 of each ten are cut short; with ``text_only`` there are none.
    """

    size: int
    least: int = 0
    broken: bool = False
    text_only: bool = False

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict:
        number = 0 if self.text_only else max(self.least, index % 3)
        sizes = [(40 + 17 * ((index + k) % 9), 30 + 23 * ((2 * index + k) % 7)) for k in range(number)]
        files = [image_file(*size, seed=index) for size in sizes]
        if self.broken and index % 10 == 5:
            files = [file[: len(file) // 2] for file in files]
        question = [*[None] * number, " ".join(WORDS[: 2 + index % 9]), f"chat {index}"]
        answer = turn("assistant", " ".join(WORDS[index % 5 : 5 + index % 7]))
        return {"messages": [turn("user", *question), answer], "images": files}


def pipeline(dataset, *more, family: str = "qwen3_vl", **source) -> odb.Pipeline:
    """The vision pipeline over a dataset; ``more`` stages come before the template."""
    model = processor(family)
    return odb.Pipeline(
        odb.FromDataset(dataset, **source),
        stages.MeasureImages(),
        *more,
        stages.ChatTemplate(model),
        stages.Tokenize(model),
        stages.ExpandVisualTokens(model),
    )
