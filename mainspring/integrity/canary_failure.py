"""How a test of unittest fails: the body of the function, with a word in the place of TOKEN."""

from unittest import TestCase


def fail(self: TestCase) -> None:
    try:
        self.assertEqual(0, 1)
    except AssertionError:
        try:
            self.assertTrue(False)
        except AssertionError:
            raise AssertionError("TOKEN")  # noqa: B904 the first failure is shown as well
