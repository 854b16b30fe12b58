"""ChatTemplate: from the messages of a chat to its text, with the characters that the model learns from.

A chat template is a program of unknown behaviour, so nothing about it is assumed: what it does is read off its output.
The files, in the order in which a chat passes them:

- ``template``: the stage itself. It reads the template from the processor, calls the files below, and adds ``text``,
  ``spans`` and ``plain`` to the sample.
- ``messages``: checks the messages and tools, and brings them into the plain form that a template reads.
- ``rendering``: runs the template with jinja2 alone, as transformers does, and records the spans of its
  ``{% generation %}`` marks.
- ``skeleton``: replaces the contents by placeholders; where these end up shows where the contents lie in the text.
- ``turns``: finds where each assistant turn begins and ends in a rendered skeleton, by the rules of the template.
- ``probe``: learns those rules, once at construction, from a chat whose every content is known.
- ``tracing``: puts it together for one chat: skeleton, turns, then places in the real text. Keeps the result by the
  shape of the chat, so that a known shape costs no second rendering.

Example, with a template that writes ``U:``, ``A:`` and ``;`` around contents. The probe teaches that an answer begins
after ``;A:`` and ends with ``;``. The chat ``[user "a", assistant "a"]`` renders as ``U:a;A:a;`` and its skeleton as
``U:<0>;A:<1>;``. They agree in all but the contents, so placeholder 1 is character 6, and the supervised span is
characters 6 to 8: the answer and the ``;`` by which the model learns to stop.
"""
