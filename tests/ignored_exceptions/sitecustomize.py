"""In processes that tests start: what Python would write as "Exception ignored" and forget ends them with an error."""

import os
import sys


def end(unraisable) -> None:
    sys.__unraisablehook__(unraisable)
    if not issubclass(unraisable.exc_type, (KeyboardInterrupt, SystemExit)):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(70)


sys.unraisablehook = end
