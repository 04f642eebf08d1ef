"""One replayed round: clues in, reward out."""
