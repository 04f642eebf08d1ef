"""Documents and questions in; ranked documents out."""
