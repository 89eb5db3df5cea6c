"""What a user can fix, and what another process broke. The command line prints one line for either."""


class InputError(ValueError):
    """A mistake in what we were given: says what was found, what was expected and what to do."""


class LostRanksError(RuntimeError):
    """Another process of the same run died or fell silent: nothing is wrong here, but it cannot go on alone."""
