"""Chat templates of several families, in their own words, and a small byte-level tokenizer to go with them."""

from functools import cache

from stage_samples import byte_level
from tokenizers import AddedToken, Tokenizer, processors

from odb_stream.sample import Sample

SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<|start|>", "<|sep|>", "<|eot|>"]

CHATML = """
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

CHATML_MARKED = """
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- if message['role'] == 'assistant' -%}
        {% generation %}{{- message['content'] + '<|im_end|>' -}}{% endgeneration %}
    {%- else -%}
        {{- message['content'] + '<|im_end|>' -}}
    {%- endif -%}
    {{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

# No generation prompt at all, and a token after the whole chat.
CHATML_BARE = CHATML.partition("{%- if add_generation_prompt")[0] + "{{- '<|endoftext|>' -}}"

# Reasoning of earlier answers is dropped; the last answer always has a think block; tools and calls are rendered.
THINKING = """
{%- if tools -%}
    {{- '<|im_start|>system\\n' -}}
    {%- if messages[0].role == 'system' -%}{{- messages[0].content + '\\n\\n' -}}{%- endif -%}
    {{- '# Tools\\n' -}}
    {%- for tool in tools -%}{{- tool | tojson -}}{{- '\\n' -}}{%- endfor -%}
    {{- '<|im_end|>\\n' -}}
{%- elif messages[0].role == 'system' -%}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- set ns = namespace(last=0, seeking=true) -%}
{%- for message in messages[::-1] -%}
    {%- if ns.seeking and message.role == 'user' and message.content is string
        and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) -%}
        {%- set ns.last = messages | length - loop.index -%}{%- set ns.seeking = false -%}
    {%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else '' -%}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' -}}
    {%- elif message.role == 'assistant' -%}
        {%- set reasoning = '' -%}
        {%- if message.reasoning_content is string -%}
            {%- set reasoning = message.reasoning_content -%}
        {%- elif '</think>' in content -%}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
        {%- endif -%}
        {{- '<|im_start|>assistant\\n' -}}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) -%}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') -}}
        {%- else -%}
            {{- content -}}
        {%- endif -%}
        {%- for call in message.tool_calls or [] -%}
            {%- if (loop.first and content) or not loop.first -%}{{- '\\n' -}}{%- endif -%}
            {%- set function = call.function or call -%}
            {{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' -}}
            {%- if function.arguments is string -%}
                {{- function.arguments -}}
            {%- else -%}
                {{- function.arguments | tojson -}}
            {%- endif -%}
            {{- '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\\n' -}}
    {%- elif message.role == 'tool' -%}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' -}}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{%- endif -%}
"""

THINKING_MARKED = THINKING.replace(
    "{{- '<|im_start|>assistant\\n' -}}\n        {%- if loop.index0",
    "{{- '<|im_start|>assistant\\n' -}}{%- generation -%}\n        {%- if loop.index0",
).replace(
    "{%- endfor -%}\n        {{- '<|im_end|>\\n' -}}",
    "{%- endfor -%}\n        {{- '<|im_end|>' -}}{%- endgeneration -%}{{- '\\n' -}}",
)

# The system message goes into the first user turn, contents are trimmed, roles must alternate, no generation prompt.
INST = """
{%- if messages[0].role == 'system' -%}
    {%- set system = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' -%}{%- set chat = messages[1:] -%}
{%- else -%}
    {%- set system = '' -%}{%- set chat = messages -%}
{%- endif -%}
{%- for message in chat -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('roles must alternate user/assistant/user/assistant') -}}
    {%- endif -%}
    {%- set content = system + message.content if loop.index0 == 0 else message.content -%}
    {%- if message.role == 'user' -%}
        {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' -}}
    {%- elif message.role == 'assistant' -%}
        {{- ' ' + content | trim + ' ' + eos_token -}}
    {%- endif -%}
{%- endfor -%}
"""

# Headers with a name, trimmed contents, tool results as JSON strings, one call a turn.
HEADERS = """
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role == 'assistant' and message.tool_calls is defined -%}
        {%- set call = message.tool_calls[0].function -%}
        {{- '<|start|>assistant<|sep|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}<|eot|>' -}}
    {%- elif message.role == 'tool' -%}
        {{- '<|start|>ipython<|sep|>\\n\\n' + message.content | tojson + '<|eot|>' -}}
    {%- else -%}
        {{- '<|start|>' + message.role + '<|sep|>\\n\\n' + message.content | trim + '<|eot|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant<|sep|>\\n\\n' -}}{%- endif -%}
"""

# The prompt opens a think block that a finished turn does not have.
PROMPTED_THINKING = """
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {{- '<|start|>assistant<|sep|>' + message.content.split('</think>')[-1] + '<|eot|>' -}}
    {%- else -%}
        {{- '<|start|>' + message.role + '<|sep|>' + message.content -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant<|sep|><think>\\n' -}}{%- endif -%}
"""

# No token of the vocabulary anywhere.
WORDS = """
{%- for message in messages -%}
    {{- message.role | capitalize + ': ' + message.content + '\\n\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant: ' -}}{%- endif -%}
"""

# Asks whether a content is empty.
SPOKEN = CHATML.replace("message['content']", "(message['content'] or '(nothing)')")

ALL = {
    "chatml": CHATML,
    "marked": CHATML_MARKED,
    "bare": CHATML_BARE,
    "thinking": THINKING,
    "thinking_marked": THINKING_MARKED,
    "inst": INST,
    "headers": HEADERS,
    "prompted": PROMPTED_THINKING,
    "words": WORDS,
    "spoken": SPOKEN,
}


@cache
def backend(trim_offsets: bool = True) -> Tokenizer:
    """A byte-level tokenizer with special and ordinary added tokens."""
    words = "user assistant system tool hello world answer the question im_end im_start 你好 世界 😀 \n\n think"
    tokenizer = byte_level(words, SPECIALS, 420)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    tokenizer.add_tokens(
        [AddedToken(word, special=False, normalized=False) for word in ("<think>", "</think>", "<tool_call>")]
    )
    return tokenizer


def wrapped(template: object = None, tokenizer: Tokenizer | None = None):
    """The tokenizer as transformers has it."""
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer or backend(), bos_token="<s>", eos_token="</s>", pad_token="<|endoftext|>"
    )
    if template is not None:
        fast.chat_template = template
    return fast


def chat(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    """A chat of user and assistant in turn."""
    turns = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(contents)]
    return ([] if system is None else [{"role": "system", "content": system}]) + turns


def call(name: str = "find", arguments: object = None) -> dict[str, object]:
    """A tool call as in the chat format of Hugging Face."""
    return {"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments or {"q": "x"}}}


def supervised(rendered: Sample) -> list[str]:
    """The supervised stretches of a rendered chat."""
    return [rendered["text"][start:end] for start, end in rendered["spans"]]
