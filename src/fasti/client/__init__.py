"""The SDK: what `import fasti` gives, on a broker of its own process or on one far away."""
