"""The command line: `main` finds a command, and each command is a module of its own."""
