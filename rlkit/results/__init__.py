"""What the tuning changed: evaluation, statistics, plots and the report."""
