"""What drives whole studies: the graph of all runs, the paper in one call, publishing, notebooks through papermill."""
