"""Chats to text: a chat template is rendered, and the characters that the assistant says are found in it."""
