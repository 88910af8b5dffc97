"""`python -m tuner` is the `tuner` command."""

from tuner.cli.main import main

if __name__ == "__main__":
    main()
