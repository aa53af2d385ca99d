"""The page: everything that is known of jobs, in a browser. Reads, and changes nothing."""
