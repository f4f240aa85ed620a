"""Models, training, evaluation and reporting of Functional Distribution Networks (FDN)."""
