"""Samples for training."""
