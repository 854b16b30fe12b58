"""Images of a sample: measured first, decoded last.

- ``measure``: the stage that binds the image parts of a chat to files and reads the files' sizes from their headers.
- ``files``: what is known of image files: how they are measured and opened, and why one cannot be used.
- ``augment``: transforms that draw their numbers before any pixel is decoded.
- ``patches``: the pixels of Qwen's vision encoders, by table.
"""
