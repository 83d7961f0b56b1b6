"""The one error that is meant for the person at the keyboard."""


class UserError(Exception):
    """Something the user can fix, said in one or two lines: what is wrong, where, and the remedy.

    The command line prints the message without a traceback and exits with status 2. Everything else that
    escapes is a bug of ours and exits with status 1.
    """

    def __init__(self, message: str, said_by_another: bool = False):
        super().__init__(message)
        self.said_by_another = said_by_another
        """Another process of the same job tells the person; this one need not."""
