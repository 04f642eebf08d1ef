"""The policy, how it is sampled, and how GRPO and SFT move it."""
