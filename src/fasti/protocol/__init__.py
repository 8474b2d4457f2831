"""The words of docs/protocol.md as code: what doors and clients share."""
