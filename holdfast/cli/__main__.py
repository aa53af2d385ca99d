"""`python -m holdfast.cli`, by which Holdfast starts itself: the same as `python -m holdfast`."""

import sys

from holdfast.cli import command

sys.exit(command())
