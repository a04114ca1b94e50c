# SPDX-License-Identifier: Apache-2.0
"""When something is done again, on the monotonic clock in seconds. Pure."""


class TokenBucket:
    """Some actions at once, then one in an interval."""

    def __init__(self, size: int, interval_s: float) -> None:
        """
        :param size: actions that may follow one another at once
        :param interval_s: after which one more may
        """
        self._size = size
        self._interval_s = interval_s
        self._tokens = float(size)
        self._filled_at_s: float | None = None

    def acquire(self, now_s: float) -> bool:
        """Spend a token.

        :returns: whether there was one
        """
        if self._filled_at_s is not None:
            self._tokens = min(
                float(self._size), self._tokens
                + (now_s - self._filled_at_s) / self._interval_s)
        self._filled_at_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def log_tokens() -> TokenBucket:
    """Of lines in the log that others can have written: ten, then one a
    minute.
    """
    return TokenBucket(10, 60.0)


class Backoff:
    """Waits that double with each failure in a row.

    :ivar next_at_s: not to be tried again before
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self.next_at_s = float('-inf')
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures = 0

    def fail(self, now_s: float) -> float:
        """Count a failure.

        :returns: for how long to wait, in seconds
        """
        delay_s = min(self._longest_s,
                      self._first_s * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self.next_at_s = now_s + delay_s
        return delay_s

    def defer(self, until_s: float) -> None:
        """Wait, without a failure."""
        self.next_at_s = until_s

    def reset(self) -> None:
        """Forget all failures: the next try may be made now."""
        self._failures = 0
        self.next_at_s = float('-inf')
