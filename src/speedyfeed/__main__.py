"""`python -m speedyfeed` is the `speedyfeed` command."""

from speedyfeed.cli.main import main

if __name__ == "__main__":
    main()
