"""The study on real text: what its runs are (parts.py, queue.yaml) and who collects its rounds
(executors.py)."""
