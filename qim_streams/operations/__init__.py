"""Operations: edits and recalls of messages that were sent before.

`rules` is what they are and who may do them; `shown` is how readers see them. The commit stage gives
them numbers and changes their targets, the archiver does the same to the archived copies.

Spec: §8.
"""
