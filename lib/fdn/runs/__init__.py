"""Runs of the study: cells and their results, the workflow, extras, differences and notebooks."""
