"""Training a stack of networks, its objectives and steps, and prediction from it."""
