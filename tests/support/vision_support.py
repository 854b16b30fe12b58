"""Chat templates of three vision families, their processors, and pictures to go with them."""

import io
from functools import cache

import numpy as np
from PIL import Image
from stage_samples import byte_level
from tokenizers import Tokenizer

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
    """An image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def exif(orientation: object) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def image_file(width: int = 60, height: int = 40, *, seed: int = 0) -> bytes:
    """A picture as a PNG file."""
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
    """How many image parts a chat has."""
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
