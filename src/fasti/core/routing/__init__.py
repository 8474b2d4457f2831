"""From topic to topic: bindings, the subjects that fit them, and fan-out."""
