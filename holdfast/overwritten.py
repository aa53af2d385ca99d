"""Lines that are written over, as by a progress bar.

Such a line goes back to its beginning with a carriage return, over and over, and ends after an
hour or never. Whoever reads output line by line shows its newest state now and then, every
`STATE_S`, and of one that has ended the last: what a terminal would show.
"""

STATE_S = 5.0


def on_top(line: bytes) -> bytes:
    """What is left of a line that was written over, from the carriage return before it on."""
    shown = line.rstrip(b"\r")
    return line[max(0, shown.rfind(b"\r")) :]
