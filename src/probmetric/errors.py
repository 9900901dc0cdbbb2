"""The base of errors meant for people."""


class ProbMetricError(Exception):
    """Something a person can mend: the message says what is wrong, where, and the fix. Commands print it alone."""
