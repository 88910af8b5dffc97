"""`python -m benchmarks.search`: the comparison itself is in `comparison`, which worker processes can import."""

from benchmarks.search.comparison import main

if __name__ == "__main__":
    main()
