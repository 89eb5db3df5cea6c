"""What a user can fix. The command line prints it as one line and exits with code 2."""


class InputError(ValueError):
    """A mistake in what we were given: says what was found, what was expected and what to do."""
