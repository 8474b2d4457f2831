"""The broker's settings: declared once, read from flags, environment and file, shown as TOML.

`declared` has a line for each setting, from which its TOML key, flag, environment variable and
documentation follow. `values` knows how sizes, lengths of time and addresses are written. `load`
gathers what was given and reports everything that is wrong at once. `page` writes it out again.
"""
