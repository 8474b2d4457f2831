"""What a shard keeps: the journal, the blocks derived from it, and how both are read again.

``files`` is the only door to the disk; ``frames`` and ``journal`` keep the truth; ``blocks``
keeps what is derived; ``memory`` has the same protocols without a disk.
"""
