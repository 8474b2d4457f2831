"""The `fasti` command as a process: `fasti`, or `python -m fasti`."""

from fasti.cli import connection
from fasti.cli.main import app


def main() -> None:
    """Runs a command and ends the process with its exit code."""
    connection.own_process = True
    app(prog_name="fasti")


if __name__ == "__main__":
    main()
