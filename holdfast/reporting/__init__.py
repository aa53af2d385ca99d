"""A report about a job for people who were not there: its facts, what to change, and a page."""
