"""Work done ahead in a thread: results wait in a short queue, an error in its place, and `close` ends the thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """Runs an iterator in a thread, at most `depth` items ahead.

    Reading and tokenizing release Python's lock for most of their time, so that a thread is enough to overlap them with
    training. The thread begins with the first `get`.
    """

    def __init__(self, items: Iterator[T], depth: int) -> None:
        self._items = items
        self._depth = depth
        self._ready: deque[T] = deque()
        self._end: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="llmtrain-data", daemon=True)

    def get(self) -> T:
        """The next item, waiting for it.

        Raises:
            StopIteration: there are none left.
            Exception: what the iterator raised, after the items before it; and again at each further call.
        """
        if self._thread.ident is None:
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._end is not None)
            if self._ready:
                item = self._ready.popleft()
                self._changed.notify_all()
                return item
            assert self._end is not None
            raise self._end

    def close(self) -> None:
        """End the thread, once it is done with the item at hand, and drop what is ready."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._end = self._end or StopIteration()
            self._changed.notify_all()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        end: BaseException = StopIteration()
        try:
            for item in self._items:
                if not self._put(item):
                    break
        except BaseException as error:  # noqa: BLE001  (raised where the item is asked for)
            end = error
        finally:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()
        with self._changed:
            self._end = self._end or end
            self._changed.notify_all()

    def _put(self, item: T) -> bool:
        """Put an item where `get` finds it; False where nobody wants it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
            if self._closed:
                return False
            self._ready.append(item)
            self._changed.notify_all()
            return True
