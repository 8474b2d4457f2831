"""What a shard keeps: the journal, the blocks derived from it, and how both are read again.

``journal``, ``blocks`` and ``storage_engine`` are the protocols; ``files`` and ``memory`` implement them, and
``directory`` composes what a broker on this machine stands on. ``tools`` work on a directory at rest.
"""
