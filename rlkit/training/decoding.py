"""One more token of every row, through the layers of a Llama-like model without module calls.

At a few rows a token the arithmetic of a layer is small, and half of the time goes into the calls
around it: modules, hooks, adapters' bookkeeping. `PlainDecoder` reads the weights once and
computes the same in straight code (in bfloat16 up to rounding). It serves the layers listed in
`LAYERS`, with plain or LoRA linear layers; for every other model `PlainDecoder.of` is None, and
decoding calls the modules.

Shape letters: N rows, H query heads, J key heads, D head size, E hidden size, R rank of LoRA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm

from rlkit.training.attention import decode_attention
from rlkit.training.caches import DecodingCache
from rlkit.training.prefix import decoder_and_head

# Layers of transformers that are: norm, attention, add, norm, gated MLP, add.
LAYERS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")


@dataclass(frozen=True, eq=False)
class Projection:
    """x W^T + b + (x A^T)(s B^T): a linear layer with the adapter that is active."""

    weight: Tensor
    bias: Tensor | None
    down: Tensor | None = None  # A, (R, in)
    up: Tensor | None = None  # s B^T, (R, out)

    def __call__(self, x: Tensor) -> Tensor:
        y = linear(x, self.weight, self.bias)
        if self.down is None:
            return y
        if self.down.dtype == y.dtype:
            return y.addmm_(linear(x, self.down), self.up)
        return (y + linear(x.to(self.down.dtype), self.down) @ self.up).to(y.dtype)

    @classmethod
    def of(cls, module: nn.Module) -> Projection | None:
        """None where the layer is more than this: quantised, DoRA, several adapters at once."""
        if type(module) is nn.Linear:
            return cls(module.weight, module.bias)
        if type(module) is not LoraLinear or type(module.base_layer) is not nn.Linear:
            return None
        base = cls(module.base_layer.weight, module.base_layer.bias)
        active = [name for name in module.active_adapters if name in module.lora_A]
        if module.disable_adapters or not active:
            return None if module.merged else base
        name = active[0]
        if len(active) > 1 or module.merged or name in module.lora_variant:
            return None
        if module.lora_B[name].bias is not None:
            return None
        up = module.lora_B[name].weight.detach().t() * module.scaling[name]
        return cls(base.weight, base.bias, module.lora_A[name].weight.detach(), up)


@dataclass(frozen=True, eq=False)
class PlainLayer:
    """What one layer computes with."""

    norm_1: nn.Module
    norm_2: nn.Module
    query: Projection
    key: Projection
    value: Projection
    output: Projection
    query_norm: nn.Module | None
    key_norm: nn.Module | None
    gate: Projection
    up: Projection
    down: Projection
    activation: Callable[[Tensor], Tensor]
    scale: float
    window: int | None

    @classmethod
    def of(cls, layer: nn.Module, config: Any) -> PlainLayer | None:
        if type(layer).__name__ not in LAYERS:
            return None
        attention, mlp = layer.self_attn, layer.mlp
        names = [getattr(attention, f"{name}_proj") for name in "qkvo"]
        names += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        q, k, v, o, gate, up, down = (Projection.of(module) for module in names)
        if None in (q, k, v, o, gate, up, down):
            return None
        if type(layer).__name__ == "MistralDecoderLayer":  # its attention does not keep it
            window = getattr(config, "sliding_window", None)
        else:
            window = getattr(attention, "sliding_window", None)
        return cls(
            norm_1=layer.input_layernorm,
            norm_2=layer.post_attention_layernorm,
            query=q,
            key=k,
            value=v,
            output=o,
            query_norm=getattr(attention, "q_norm", None),
            key_norm=getattr(attention, "k_norm", None),
            gate=gate,
            up=up,
            down=down,
            activation=mlp.act_fn,
            scale=attention.scaling,
            window=window,
        )


@dataclass(frozen=True)
class PlainDecoder:
    """The layers of a model, ready for `step`."""

    embedding: Tensor
    rotary: nn.Module
    layers: list[PlainLayer]
    norm: nn.Module
    size: int  # D

    @classmethod
    def of(cls, model: nn.Module) -> PlainDecoder | None:
        """The decoder as its adapters stand now; None where its modules have to be called."""
        decoder, _ = decoder_and_head(model)
        config = model.config.get_text_config()
        hooked = any(
            m._forward_hooks or m._forward_pre_hooks or hasattr(m, "_hf_hook")
            for m in decoder.modules()
        )
        layers = [PlainLayer.of(layer, config) for layer in getattr(decoder, "layers", [])]
        if hooked or not layers or None in layers:
            return None
        table = decoder.embed_tokens
        if type(table) is not nn.Embedding:
            return None
        size = decoder.layers[0].self_attn.head_dim
        return cls(table.weight, decoder.rotary_emb, layers, decoder.norm, size)

    def step(self, tokens: Tensor, cache: DecodingCache) -> Tensor:
        """(N, E) last hidden states behind one more token (N,) of every row."""
        x = embedding(tokens, self.embedding)
        cosine, sine = self.rotary(x[:, None], cache.position_ids())  # (N, 1, D) each
        half = self.size // 2
        sine = torch.cat([-sine[..., :half], sine[..., half:]], dim=-1)
        for index, layer in enumerate(self.layers):
            x = x + self._attention(layer, _norm(layer.norm_1, x), cosine, sine, cache, index)
            y = _norm(layer.norm_2, x)
            x = x + layer.down(layer.activation(layer.gate(y)) * layer.up(y))
        return _norm(self.norm, x)

    def _attention(
        self, layer: PlainLayer, x: Tensor, cosine: Tensor, sine: Tensor, cache: Any, index: int
    ) -> Tensor:
        q = layer.query(x).view(len(x), -1, self.size)  # (N, H, D)
        k = layer.key(x).view(len(x), -1, self.size)  # (N, J, D)
        v = layer.value(x).view(len(x), -1, self.size)
        if layer.query_norm is not None:
            q, k = _norm(layer.query_norm, q), _norm(layer.key_norm, k)
        q, k = _rotate(q, cosine, sine), _rotate(k, cosine, sine)
        heads = decode_attention(
            q[:, :, None], k[:, :, None], v[:, :, None], layer.scale, cache, layer.window, index
        )
        return layer.output(heads.reshape(len(x), -1))


def _norm(module: nn.Module, x: Tensor) -> Tensor:
    """Root mean square norm (arXiv:1910.07467) over the last dimension."""
    return rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position embedding: x cos + rotate_half(x) sin. `sine` has the sign of rotate_half
    = [-x_2, x_1] in its first half, so that a roll by half the head does the rest."""
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, dims=-1), sine)
