"""Questions with a checkable answer: data, rewards, and the pipeline around them."""
