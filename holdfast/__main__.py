"""`python -m holdfast`: the same as `holdfast`, for where the script is not on the path."""

import sys

from holdfast.cli import command

sys.exit(command())
