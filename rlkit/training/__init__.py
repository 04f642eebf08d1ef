"""The policy, how it is sampled, and how GRPO and SFT move it.

policy.py, models.py, adapters.py, precision.py, text.py   a model with its LoRA adapter ...
fingerprint.py, adapter_check.py   which base an adapter was trained on, and whether it fits one
weights.py                  ... or all of its weights trained, with frozen copies beside them
four_bit.py                 4-bit layers on a CPU, made to compute what they hold
caches.py, attention.py, flash.py, prefix.py   a prompt read once, and what attends to it
mlp.py                      a gated MLP that keeps less for its backward pass
sampling.py, decoding.py, recorded.py   K actions behind it, token by token
engines.py                  ... or by vLLM, which is another program:
vllm_server.py, vllm_local.py, vllm_requests.py, vllm_adapters.py   its server, or in this process
grouping.py, overlap.py     the groups of a step, sampled and scored, one while another is judged
logprobs.py                 their log-probabilities, in one pass
rollout.py, advantages.py, credit.py   a group, and what each of its tokens is credited with
grpo.py                     the formulas of the losses
trainer.py, gradients.py, schedule.py, greedy.py   one step, and the optimiser's move
stages.py, loop.py          a run: data and model with its warm start, then step by step ...
dev.py, interrupts.py, metrics.py, alarms.py, stopping.py, monitor.py   ... what it says, and when
                            it ends
ranks.py, launcher.py       its processes, and what their launcher asks for
sharding.py, zero.py        a base, or AdamW's moments, divided over them
checkpointing.py, resume.py                        kept, and taken up again bit for bit
estimate.py, scaling.py, trial.py   before a run: memory and disk, batch and rate, one step
stored.py, replay.py        stored actions under other losses, with no new sampling
sft.py, sft_state.py, sft_best.py, packing.py      the warm start, kept, and its rows packed
"""

import warnings

# peft asks transformers for an attribute under its old name; nobody who reads it can mend that
warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
