"""The static site: pages made from results, notebooks and docstrings, and Sphinx to turn them into HTML."""
