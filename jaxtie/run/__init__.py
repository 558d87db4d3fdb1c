"""Run experiments: files, runs, reports, the command line."""
