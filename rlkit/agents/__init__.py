"""The frozen agents; the Executor's prompt and the parser of what it writes."""
