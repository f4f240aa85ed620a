"""Runs of the study: cells and their results, extras and differences."""
