"""What is said of results: published numbers, tables, figures, claims, pages and the site."""
