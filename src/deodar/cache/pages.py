"""Pages: fixed units of cache storage, as integers.

Called by the prefix tree and the cache manager only. A page is free, held (some lease reads or
writes it) or idle (nobody holds it, the prefix tree still lists it, so it may be evicted). What
must hold: free + idle + held = total after every call.
"""

from __future__ import annotations

from deodar.errors import ConfigError


class AccountingError(AssertionError):
    """A page, lease or snapshot was used against the rules. A bug in the caller, never in input."""


class PagePool:
    """Page ids 0 .. total - 1, with the number of leases and of tree nodes that use each."""

    def __init__(self, total_pages: int) -> None:
        """Raises ConfigError for fewer than one page."""
        if total_pages < 1:
            raise ConfigError(f"the cache has {total_pages} pages, must have at least 1")
        self.total_pages = total_pages
        self._free = list(range(total_pages - 1, -1, -1))
        self._leases = [0] * total_pages
        self._nodes = [0] * total_pages
        self.idle_pages = 0

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def held_pages(self) -> int:
        return self.total_pages - self.free_pages - self.idle_pages

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` free pages, each held once; None and no change when there are too few."""
        if count > len(self._free):
            return None
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._leases[page] = 1
        return pages

    def hold(self, page: int) -> None:
        """One more lease on a page that is in use. Raises AccountingError for a free page."""
        if self._leases[page] == 0:
            if self._nodes[page] == 0:
                raise AccountingError(f"page {page} is free and cannot be held")
            self.idle_pages -= 1
        self._leases[page] += 1

    def unhold(self, page: int) -> None:
        """One lease less. The page turns idle if a node lists it, else free."""
        if self._leases[page] == 0:
            raise AccountingError(f"page {page} is not held")
        self._leases[page] -= 1
        if self._leases[page] == 0:
            if self._nodes[page]:
                self.idle_pages += 1
            else:
                self._free.append(page)

    def list_in_tree(self, page: int) -> None:
        """A tree node lists the page. Its caller holds it: a free page has nothing to list."""
        if self._leases[page] == 0:
            raise AccountingError(f"page {page} is not held by the lease that publishes it")
        self._nodes[page] += 1

    def unlist(self, page: int) -> None:
        """A tree node lets go of the page."""
        if self._nodes[page] == 0:
            raise AccountingError(f"page {page} is in no tree node")
        self._nodes[page] -= 1
        if self._nodes[page] == 0 and self._leases[page] == 0:
            self.idle_pages -= 1
            self._free.append(page)

    def is_idle(self, page: int) -> bool:
        return self._leases[page] == 0 and self._nodes[page] > 0

    def holders(self, page: int) -> int:
        """How many leases hold the page."""
        return self._leases[page]

    def check(self) -> None:
        """Recount everything. Raises AccountingError with the first contradiction."""
        unused = [p for p in range(self.total_pages) if not (self._leases[p] or self._nodes[p])]
        if sorted(self._free) != unused:
            raise AccountingError(f"free list {sorted(self._free)} but unused pages are {unused}")
        idle = sum(self.is_idle(p) for p in range(self.total_pages))
        if idle != self.idle_pages:
            raise AccountingError(f"{idle} pages are idle, the count says {self.idle_pages}")
