"""Pages in Markdown that are made from results: the README's results, the comparison, extras and differences."""
