"""Documents of a finished dataset, taken instead of being encoded (`--reuse`)."""
