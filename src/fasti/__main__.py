"""`python -m fasti` is the `fasti` command."""

from fasti.cli.main import app

if __name__ == "__main__":
    app(prog_name="fasti")
