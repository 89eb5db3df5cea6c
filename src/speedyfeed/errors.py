"""Errors that the command line reports in one line, without a traceback."""


class InputError(ValueError):
    """Invalid input that the user can fix: the message says what was found, what was expected and what to do."""


class LostRanksError(RuntimeError):
    """Another process of a distributed run died or stopped answering, so this one cannot continue either."""
