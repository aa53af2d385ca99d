"""One job over several clusters: the first that admits it runs it, another when that is lost."""
