"""A random split of an import into pool and test items that keeps groups together.

An item is a test item if the hash of its group, as a number from 0 to 1, is below the share. A group is therefore on
the same side in every import, whatever else is imported. The group is the one that the source names, else the recording
of a window, else the file itself. Items whose source names a split keep it.
"""

from __future__ import annotations

import hashlib

SEED = "winnow random split"


def is_test_group(group: str, share: float) -> bool:
    digest = hashlib.sha256(f"{SEED} {group}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < share


class RandomSplit:
    """Assigns items and counts the groups of each side."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._groups: tuple[set[str], set[str]] = (set(), set())  # of the pool, of the test items
        self._n_test = self._n_all = 0

    def is_test(self, group: str) -> bool:
        """Whether an item of this group is a test item; it is counted."""
        is_test = is_test_group(group, self.share)
        self._groups[is_test].add(group)
        self._n_all += 1
        self._n_test += is_test
        return is_test

    def messages(self) -> list[str]:
        """Sentences for the report: how many items and groups were assigned to each side."""
        n_pool, n_test = map(len, self._groups)
        if not self.share or not self._n_all:
            return []
        message = (
            f"Random split by group: {self._n_test:,} of {self._n_all:,} items are test items ({n_test:,} of "
            f"{n_pool + n_test:,} groups). A group, or a recording with its windows, is never divided."
        )
        if not n_pool or not n_test:
            side = "test items" if not n_test else "items in the pool"
            message += f" There are no {side}: import more groups, or name the splits in a manifest."
        return [message]
