"""The policy, how it is sampled, and how GRPO and SFT move it."""

import warnings

# peft asks transformers for an attribute under its old name; nobody who reads it can mend that
warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
