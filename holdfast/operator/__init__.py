"""The operator for the TrainingJob resource, and the federation of clusters."""
