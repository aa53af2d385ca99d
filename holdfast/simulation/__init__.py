"""The production controller in simulated worlds: to break it, and to answer capacity questions."""
