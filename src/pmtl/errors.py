"""The one exception a person is meant to read."""


class PmtlError(Exception):
    """A mistake its reader can mend.

    The message is a whole sentence or two: what was wrong, where, and what to do.
    The command line prints it without a traceback and leaves with status 2.
    """


class Interrupted(Exception):
    """Work was asked to stop, and did so with everything saved; the message says how to go on.

    Not a `KeyboardInterrupt`, which Typer would turn into a bare "Aborted".
    """
