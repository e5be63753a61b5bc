"""The one exception of the checker."""


class Refused(Exception):
    """The certificate is not accepted; the message says why, at the first step that fails."""
