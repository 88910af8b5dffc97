"""A separate process that writes trials: `python -m tests.contracts.store_writer URL STUDY FIRST COUNT`.

It prints `ready` and opens the database after a line on its standard input. It then prints `open`, and after another
line it writes the trials and prints each trial's number once the store has accepted its outcome.
"""

import sys

import storage.store
from tests import store_samples as samples


def main(url: str, study: str, first: int, count: int) -> None:
    """Add, begin and finish `count` trials from number `first` on."""
    print("ready", flush=True)
    sys.stdin.readline()
    store = storage.store.open_store(url)
    print("open", flush=True)
    sys.stdin.readline()
    for number in range(first, first + count):
        store.add_trial(samples.pending(number, study=study))
        store.begin_attempt(study, number, 0)
        store.finish_trial(study, number, 0, samples.success(), samples.verdict())
        print(number, flush=True)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
